"""sessions.py URI: requests by libnbd, right and wrong ones, to an export of some 16 MiB."""

import errno
import sys

import nbd

h = nbd.NBD()
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(sys.argv[1])
size = h.get_size()
assert 15 << 20 < size <= 16 << 20, size
assert h.can_multi_conn() and h.can_fast_zero() and h.can_df() and h.can_cache()
block = h.get_block_size(nbd.SIZE_MINIMUM)


def refused(code, call, *args, **kwargs):
    """The server, not the library, refuses the call with `code`."""
    try:
        call(*args, **kwargs)
    except nbd.Error as ex:
        assert ex.errnum == code, (ex.errnum, ex.string)
    else:
        raise AssertionError(f"{call} was not refused")


# Content, forced unit access, zeros, and asynchronous calls.
unit = max(block, 4096)
h.pwrite(b"\x5a" * unit * 2, 0)
h.pwrite(b"\xa5" * unit, unit, nbd.CMD_FLAG_FUA)
assert h.pread(unit * 2, 0) == b"\x5a" * unit + b"\xa5" * unit
h.zero(unit, 0, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(unit, 0) == bytes(unit)
h.trim(unit, unit)
h.cache(1 << 20, 0)
h.flush()

buffers = [nbd.Buffer(unit) for _ in range(64)]
cookies = [h.aio_pread(buffer, i * unit) for i, buffer in enumerate(buffers)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in cookies)

# Chunks of a structured read lie side by side.
chunks = []
h.pread_structured(4 << 20, 0, lambda data, off, kind, err: chunks.append((off, len(data))) and 0)
assert sum(length for _, length in chunks) == 4 << 20

# Block status covers the requested range.
extents = []
h.block_status(size, 0, lambda context, off, entries, err: extents.extend(entries[::2]) and 0)
assert 0 < sum(extents) <= size

# Wrong requests, which the library would not send by itself. The session survives each.
h.set_strict_mode(0)
refused(errno.EINVAL, h.pread, unit, size)
refused(errno.ENOSPC, h.pwrite, bytes(unit), size)
refused(errno.ENOSPC, h.zero, size, unit)
refused(errno.EINVAL, h.trim, size, unit)
refused(errno.EINVAL, h.pread, unit, 0, nbd.CMD_FLAG_FAST_ZERO)
if block > 1:
    refused(errno.EINVAL, h.pread, 1, 0)
assert len(h.pread(unit, 0)) == unit

# A flush covers writes of other connections.
other = nbd.NBD()
other.connect_uri(sys.argv[1])
other.pwrite(b"\x77" * unit, 8 * unit)
h.flush()
assert h.pread(unit, 8 * unit) == b"\x77" * unit
other.shutdown()
h.shutdown()
