"""confirmed.py write|check URI FILE ROUND

`write` stores numbered blocks until the server dies, and notes in FILE which of them were confirmed
as durable. `check` reads those back.
"""

import struct
import sys

import nbd

BLOCK = 4096
mode, uri, path, round_text = sys.argv[1:]
seed = int(round_text) << 32
h = nbd.NBD()
h.connect_uri(uri)
blocks = h.get_size() // BLOCK


def content(n):
    """Returns the n-th block that this round writes."""
    return struct.pack("<Q", seed + n) * (BLOCK // 8)


if mode == "write":
    confirmed = n = 0
    try:
        while True:
            fua = n % 8 == 0
            h.pwrite(content(n), n % blocks * BLOCK, nbd.CMD_FLAG_FUA if fua else 0)
            n += 1
            if n % 64 == 0:
                h.flush()
                confirmed = n
    except nbd.Error:
        pass
    with open(path, "w") as file:
        file.write(str(confirmed))
else:
    with open(path) as file:
        confirmed = int(file.read())
    assert confirmed > 0, "nothing was confirmed before the server died"
    # Later blocks may have been written too, in the place of the oldest.
    for n in range(max(0, confirmed - blocks // 2), confirmed):
        found = h.pread(BLOCK, n % blocks * BLOCK)
        later = struct.unpack("<Q", found[:8])[0]
        assert found == content(n) or later == seed + n + blocks, f"block {n} was lost"
    print(f"{confirmed} confirmed blocks are there")
    h.shutdown()
