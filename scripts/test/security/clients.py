#!/usr/bin/python3
"""clients.py PORT ATTACK: attacks an NBD server and checks that a new client is served in the end.

ATTACK: probe (none: a new client alone), hold (idle sessions that stay, after a line of output), flood (connections that send
nothing), loris (a handshake byte by byte), tls (handshakes of TLS that trickle), idle (sessions without a request), options (one
after the other), skip (an option of 4 GiB)."""
import resource
import socket
import struct
import sys
import threading
import time

port, attack = int(sys.argv[1]), sys.argv[2]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
FLAGS, LIST, GO, STARTTLS = struct.pack(">I", 3), 3, 7, 5
# A client with patience gets in within this time, in seconds: the deadline of a handshake, and
# some.
PATIENCE = 25


def connect(timeout=5.0):
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def option(code, data=b"", length=None):
    return b"IHAVEOPT" + struct.pack(">II", code, len(data) if length is None else length) + data


def is_served():
    """Whether a new client gets the greeting and an answer to its first option."""
    try:
        with connect(3) as client:
            greeting = client.recv(18)
            client.sendall(FLAGS + option(LIST))
            return len(greeting) == 18 and len(client.recv(100)) > 0
    except OSError:
        return False


def await_service(what):
    end = time.time() + PATIENCE
    while not is_served():
        if time.time() > end:
            sys.exit(f"{attack}: no new client is served {what}")
        time.sleep(0.5)


held = []
if attack == "probe":
    await_service("beside another user's sessions")
elif attack == "flood":
    for _ in range(1000):
        try:
            held.append(connect(1))
        except OSError:
            break
    await_service("beside a flood")
elif attack == "loris":
    client = connect()
    client.recv(18)
    start, ended = time.time(), False
    for byte in FLAGS + option(LIST) * 50:
        try:
            client.sendall(bytes([byte]))
            time.sleep(0.3)
            client.settimeout(0.2)
            if client.recv(65536) == b"":
                ended = True
                break
        except TimeoutError:
            pass
        except OSError:
            ended = True
            break
        if time.time() - start > PATIENCE:
            break
    if not ended:
        sys.exit("a handshake byte by byte goes on for ever")
elif attack == "tls":
    for _ in range(300):
        try:
            client = connect(1)
            client.recv(18)
            client.sendall(FLAGS + option(STARTTLS))
            client.recv(20)
            client.sendall(b"\x16\x03\x01\x3f\x00\x01\x00\x3e\xfc")
            held.append(client)
        except OSError:
            continue

    def trickle():
        while True:
            for client in held:
                try:
                    client.sendall(b"\0")
                except OSError:
                    pass
            time.sleep(1)

    threading.Thread(target=trickle, daemon=True).start()
    await_service("beside handshakes of TLS that trickle")
elif attack in ("idle", "hold"):
    for _ in range(300):
        try:
            client = connect(1)
            client.recv(18)
            client.sendall(FLAGS + option(GO, struct.pack(">IH", 0, 0)))
            client.recv(200)
            held.append(client)
        except OSError:
            break
    if attack == "hold":
        print("holds", len(held), flush=True)
        time.sleep(60)
    for client in held:
        client.close()
    await_service("after idle sessions")
elif attack == "options":
    client = connect()
    client.recv(18)
    client.sendall(FLAGS)
    client.settimeout(0.01)
    end = time.time() + 2
    try:
        while time.time() < end:
            client.sendall(option(LIST) * 1000)
            try:
                client.recv(1 << 20)
            except TimeoutError:
                pass
    except OSError:
        pass
    await_service("beside options without end")
else:
    client = connect(PATIENCE)
    client.recv(18)
    client.sendall(FLAGS + option(LIST, length=0xFFFFFFFF))
    try:
        client.recv(100)
    except OSError:
        pass
    await_service("beside a long option")
for client in held:
    client.close()
await_service("afterwards")
