"""Makes the wheel of the package keepstone with the library in it, by the standard library alone.

    python3 python/wheel.py target/release/libkeepstone.so target/wheel

Prints the path of the wheel. The same input gives the same bytes."""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent

METADATA = """Metadata-Version: 2.1
Name: keepstone
Version: {version}
Summary: Files in persistent memory, in the program's own process
License: Apache-2.0 OR MIT
Requires-Python: >=3.9
Provides-Extra: fsspec
Requires-Dist: fsspec>=2023.1 ; extra == 'fsspec'
Description-Content-Type: text/markdown

{description}"""

ENTRY_POINTS = """[fsspec.specs]
keepstone = keepstone.filesystem:KeepstoneFileSystem
"""


def platform_of(library):
    """Returns the tag of the oldest glibc that has all symbols that the library needs."""
    needed = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library))
    return f"manylinux_2_{needed}_x86_64"


def main(library_path, out):
    library = pathlib.Path(library_path).read_bytes()
    manifest = (HERE.parent / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"', manifest, re.M).group(1)
    tag = f"py3-none-{platform_of(library)}"
    info = f"keepstone-{version}.dist-info"
    files = {f"keepstone/{path.name}": path.read_bytes() for path in sorted((HERE / "keepstone").glob("*.py"))}
    files["keepstone/libkeepstone.so"] = library
    description = (HERE / "README.md").read_text()
    files[f"{info}/METADATA"] = METADATA.format(version=version, description=description).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: keepstone\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        files[f"{info}/{name}"] = (HERE.parent / name).read_bytes()
    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / f"keepstone-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
