#!/usr/bin/python3
"""store.py PORTFILE LOG: a small S3 in memory, at a port that it writes to PORTFILE. GET /__mode/NAME changes how it answers.

Modes: ok; hang (objects are never sent); endless (a chunked object without end); redirect (to the log of another server)."""
import http.server
import re
import socketserver
import sys
import threading
import time
import urllib.parse

objects, versions, mode, lock = {}, [0], ["ok"], threading.Lock()
port_file, log_file = sys.argv[1:3]
SENT_MAX = 4 << 30


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def note(self):
        with lock, open(log_file, "a") as log:
            log.write(f"{self.command} {self.headers.get('Host')} {self.path}\n")
            for name, value in self.headers.items():
                log.write(f"    {name}: {value}\n")

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def parts(self):
        url = urllib.parse.urlparse(self.path)
        return urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query, keep_blank_values=True)

    def redirected(self):
        if not mode[0].startswith("redirect:"):
            return False
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(307, Location=mode[0].removeprefix("redirect:") + self.path)
        return True

    def listing(self, bucket, prefix):
        items = "".join(
            f"<Contents><Key>{key[len(bucket) + 2:]}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{tag}"</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>'
            for key, (data, tag) in sorted(objects.items()) if key.startswith(f"/{bucket}/{prefix}"))
        text = f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{items}</ListBucketResult>'
        self.answer(200, text.encode(), Content_Type="application/xml")

    def do_GET(self):
        key, query = self.parts()
        if key.startswith("/__mode/"):
            mode[0] = key.removeprefix("/__mode/")
            return self.answer(200)
        self.note()
        if self.redirected():
            return None
        if "list-type" in query or key.count("/") <= 1:
            return self.listing(key.strip("/"), query.get("prefix", [""])[0])
        if mode[0] == "hang":
            time.sleep(600)
        if key not in objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data, tag = objects[key]
        headers, code = dict(ETag=f'"{tag}"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT"), 200
        if asked := self.headers.get("Range"):
            first, last = re.match(r"bytes=(\d+)-(\d*)", asked).groups()
            first, last = int(first), min(int(last or len(data) - 1), len(data) - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
            data, code = data[first : last + 1], 206
        if mode[0] == "endless":
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            chunk, sent = b"%x\r\n" % (1 << 20) + b"A" * (1 << 20) + b"\r\n", 0
            try:
                while sent < SENT_MAX:
                    self.wfile.write(chunk)
                    sent += 1 << 20
            except OSError:
                pass
            self.close_connection = True
            return None
        return self.answer(code, data, **headers)

    def do_HEAD(self):
        key, _ = self.parts()
        self.note()
        if key not in objects:
            return self.answer(404)
        self.send_response(200)
        self.send_header("ETag", f'"{objects[key][1]}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(objects[key][0])))
        self.end_headers()
        return None

    def do_PUT(self):
        self.note()
        if self.redirected():
            return None
        key, _ = self.parts()
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with lock:
            old, match = objects.get(key), self.headers.get("If-Match")
            if (self.headers.get("If-None-Match") == "*" and old) or (match and (not old or match.strip('"') != old[1])):
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            versions[0] += 1
            tag = f"{versions[0]:08x}"
            objects[key] = data, tag
        return self.answer(200, ETag=f'"{tag}"')

    def do_POST(self):
        self.note()
        if self.redirected():
            return None
        key, query = self.parts()
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "delete" not in query:
            return self.answer(400)
        for name in re.findall(rb"<Key>(.*?)</Key>", data):
            objects.pop(key.rstrip("/") + "/" + name.decode(), None)
        return self.answer(200, b"<DeleteResult></DeleteResult>")

    def do_DELETE(self):
        self.note()
        objects.pop(self.parts()[0], None)
        self.answer(204)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


server = Server(("127.0.0.1", 0), Handler)
with open(port_file, "w") as out:
    out.write(str(server.server_address[1]))
server.serve_forever()
