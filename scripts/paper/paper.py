"""Writes docs/papers: the figures of papers beside ours, from measurements, models and counts.

    paper.py [--scale N] [PAGE…]      pages: bpfs, scmfs, pmal, pmbd, chell

Operations of bpfs and scmfs are 1/N of the paper's. The measurements of pmbd, chell and bpfs are
short unless N is 1. They need root.
"""

import argparse
import tempfile

import bpfs
import chell
import pmal
import pmbd
import scmfs
from page import remember_commit

PAGES = {"bpfs": bpfs.page, "scmfs": scmfs.page, "pmal": pmal.page, "pmbd": pmbd.page,
         "chell": chell.page}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--scale", type=int, default=1, choices=range(1, 1001), metavar="1…1000")
parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
args = parser.parse_args()
unknown = [name for name in args.pages if name not in PAGES]
if unknown:
    parser.error(f"there is no page {unknown[0]}: {', '.join(PAGES)}")
remember_commit()
command = f"make paper PAPER_SCALE={args.scale}"
for name in args.pages or PAGES:
    with tempfile.TemporaryDirectory(prefix="keepstone-paper-") as directory:
        PAGES[name](directory, args.scale, command)
