//! Recognition of the content of a file or device by the signatures of file systems, volume
//! managers and others: those that libblkid knows, and those of common files.
//!
//! A signature only names the content. Content without a signature is data nevertheless
//! ([`first_data`]).

use engines::Layout;
use pmem::{Medium, Region};

use At::{End, Every, Start};

/// The place of a signature, in bytes.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Distance from the start.
    Start(u64),
    /// Distance from the end.
    End(u64),
    /// First place, distance and number of places.
    Every(u64, u64, u64),
}

/// Name, place and bytes of signatures. Short ones come after longer ones of content that they
/// could match as well.
const SIGNATURES: &[(&str, At, &[u8])] = &[
    // Keepstone's own. [`Layout::of`] recognises pools.
    ("a block device of Keepstone (`keepstone bdev`)", Start(0), b"KSTNPMBD"),
    // Persistent memory.
    ("a PMDK pool", Start(0), b"PMEMPOOL"),
    ("a PMDK pool", Start(0), b"PMEMOBJ\0"),
    ("a PMDK pool", Start(0), b"PMEMBLK\0"),
    ("a PMDK pool", Start(0), b"PMEMLOG\0"),
    ("a namespace with a block translation table", Start(0x1000), b"BTT_ARENA_INFO\0\0"),
    ("a namespace in fsdax mode", Start(0x1000), b"NVDIMM_PFN_INFO\0"),
    ("a namespace in devdax mode", Start(0x1000), b"NVDIMM_DAX_INFO\0"),
    // Encryption, volume managers, RAID.
    ("a LUKS volume", Start(0), b"LUKS\xba\xbe"),
    ("a LUKS volume", Every(0x4000, 0x4000, 255), b"SKUL\xba\xbe"),
    ("a BitLocker volume", Start(3), b"-FVE-FS-"),
    ("an LVM volume", Every(24, 512, 4), b"LVM2 001"),
    ("a Stratis volume", Every(0x204, 0x1000, 2), b"!Stra0tis\x86\xff\x02^\x41rh"),
    ("a VDO volume", Start(0), b"dmvdo001"),
    ("a dm-integrity volume", Start(0), b"integrt\0"),
    ("a dm-verity volume", Start(0), b"verity\0\0"),
    ("a dm-snapshot", Start(0), b"SnAp"),
    ("an md RAID member", Start(0), b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", Start(0x1000), b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", End(0x2000), b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", End(0x10000), b"\xfc\x4e\x2b\xa9"),
    ("an Intel RAID member", End(0x400), b"Intel Raid ISM Cfg Sig. "),
    ("a DDF RAID member", End(0x200), b"\xde\x11\xde\x11"),
    ("a DRBD device", End(0x1000 - 60), b"\x83\x74\x02\x6b"),
    ("a DRBD device", End(0x1000 - 60), b"\x83\x74\x02\x6c"),
    ("a DRBD device", End(0x1000 - 60), b"\x83\x74\x02\x6d"),
    (
        "a bcache device",
        Start(0x1018),
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
    ),
    ("a Ceph BlueStore", Start(0), b"bluestore block device\n"),
    ("an Oracle ASM disk", Start(32), b"ORCLDISK"),
    ("a VMFS volume", Start(0x10_0000), b"\x0d\xd0\x01\xc0"),
    ("a VMFS file system", Start(0x20_0000), b"\x5e\xf1\xab\x2f"),
    // Swap, for pages of 4 to 64 KiB.
    ("swap", Start(0xff6), b"SWAPSPACE2"),
    ("swap", Start(0x1ff6), b"SWAPSPACE2"),
    ("swap", Start(0x3ff6), b"SWAPSPACE2"),
    ("swap", Start(0x7ff6), b"SWAPSPACE2"),
    ("swap", Start(0xfff6), b"SWAPSPACE2"),
    ("swap", Start(0xff6), b"SWAP-SPACE"),
    ("a hibernated system", Start(0xff6), b"S1SUSPEND\0"),
    ("a hibernated system", Start(0xff6), b"S2SUSPEND\0"),
    ("a hibernated system", Start(0xff6), b"ULSUSPEND\0"),
    ("a hibernated system", Start(0xff6), b"LINHIB0001"),
    // File systems.
    ("an XFS file system", Start(0), b"XFSB"),
    ("a Btrfs file system", Start(0x10040), b"_BHRfS_M"),
    (
        "a bcachefs file system",
        Start(0x1018),
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("a ZFS pool", Every(0x20000, 0x400, 128), b"\x0c\xb1\xba\0\0\0\0\0"),
    ("a ZFS pool", Every(0x20000, 0x400, 128), b"\0\0\0\0\0\xba\xb1\x0c"),
    ("an F2FS file system", Every(0x400, 0x1000, 2), b"\x10\x20\xf5\xf2"),
    ("a JFS file system", Start(0x8000), b"JFS1"),
    ("a ReiserFS file system", Start(0x10034), b"ReIsEr"),
    ("a ReiserFS file system", Start(0x2034), b"ReIsEr"),
    ("a Reiser4 file system", Start(0x10000), b"ReIsEr4"),
    ("a GFS2 file system", Start(0x10000), b"\x01\x16\x19\x70"),
    ("an OCFS2 file system", Start(0x400), b"OCFSV2"),
    ("an OCFS2 file system", Start(0x800), b"OCFSV2"),
    ("an OCFS2 file system", Start(0x1000), b"OCFSV2"),
    ("an OCFS2 file system", Start(0x2000), b"OCFSV2"),
    ("an APFS container", Start(32), b"NXSB"),
    ("an HFS+ file system", Start(0x400), b"H+\0\x04"),
    ("an HFS+ file system", Start(0x400), b"HX\0\x05"),
    ("an NTFS file system", Start(3), b"NTFS    "),
    ("an exFAT file system", Start(3), b"EXFAT   "),
    ("a ReFS file system", Start(0), b"\0\0\0ReFS\0"),
    ("an ISO 9660 file system", Start(0x8001), b"CD001"),
    ("a UDF file system", Start(0x8001), b"BEA01"),
    ("a UDF file system", Start(0x8801), b"NSR0"),
    ("a SquashFS image", Start(0), b"hsqs"),
    ("a SquashFS image", Start(0), b"sqsh"),
    ("a cramfs image", Start(0), b"\x45\x3d\xcd\x28"),
    ("a cramfs image", Start(0), b"\x28\xcd\x3d\x45"),
    ("a romfs image", Start(0), b"-rom1fs-"),
    ("an EROFS image", Start(0x400), b"\xe2\xe1\xf5\xe0"),
    ("a UBIFS image", Start(0), b"\x31\x18\x10\x06"),
    ("a UBI image", Start(0), b"UBI#"),
    ("a zonefs file system", Start(0), b"SFOZ"),
    ("a BeFS file system", Every(0x20, 0x200, 2), b"1SFB"),
    ("a BeFS file system", Every(0x20, 0x200, 2), b"BFS1"),
    ("an SCO BFS file system", Start(0), b"\xce\xfa\xad\x1b"),
    ("an HPFS file system", Start(0x2000), b"\x49\xe8\x95\xf9"),
    ("a VxFS file system", Start(0x400), b"\xf5\xfc\x01\xa5"),
    ("a UFS file system", Start(0x2000 + 1372), b"\x54\x19\x01\0"),
    ("a UFS file system", Start(0x2000 + 1372), b"\0\x01\x19\x54"),
    ("a UFS file system", Start(0x10000 + 1372), b"\x19\x01\x54\x19"),
    ("a UFS file system", Start(0x10000 + 1372), b"\x19\x54\x01\x19"),
    // Files.
    ("an SQLite database", Start(0), b"SQLite format 3\0"),
    ("a qcow2 image", Start(0), b"QFI\xfb"),
    ("a VMDK image", Start(0), b"KDMV"),
    ("a VHDX image", Start(0), b"vhdxfile"),
    ("a VHD image", Start(0), b"conectix"),
    ("a VDI image", Start(64), b"\x7f\x10\xda\xbe"),
    ("a program", Start(0), b"\x7fELF"),
    // Partition tables; a GPT has one at the end, too.
    ("a partition table (GPT)", Start(512), b"EFI PART"),
    ("a partition table (GPT)", Start(4096), b"EFI PART"),
    ("a partition table (GPT)", End(512), b"EFI PART"),
    ("a partition table (GPT)", End(4096), b"EFI PART"),
    ("a BSD disk label", Every(0, 512, 3), b"\x57\x45\x56\x82"),
    ("an SGI disk label", Start(0), b"\x0b\xe5\xa9\x41"),
    // Signatures of two bytes, or that a partition table could contain, too.
    ("an ext2, ext3 or ext4 file system", Start(0x438), b"\x53\xef"),
    ("a FAT file system", Start(0x36), b"FAT1"),
    ("a FAT file system", Start(0x36), b"MSDOS"),
    ("a FAT file system", Start(0x52), b"FAT32"),
    ("a NILFS2 file system", Start(0x406), b"\x34\x34"),
    ("a Minix file system", Start(0x410), b"\x7f\x13"),
    ("a Minix file system", Start(0x410), b"\x8f\x13"),
    ("a Minix file system", Start(0x410), b"\x68\x24"),
    ("a Minix file system", Start(0x410), b"\x78\x24"),
    ("a Minix file system", Start(0x418), b"\x5a\x4d"),
    ("an HFS file system", Start(0x400), b"BD"),
    ("a Sun disk label", Start(508), b"\xda\xbe"),
    ("a partition table (MBR), or something that boots", Start(510), b"\x55\xaa"),
];

/// Returns the name of the first signature found, as an object with its article.
pub fn find(region: &Region) -> Option<&'static str> {
    if Layout::of(region).is_some() {
        return Some("a pool that cannot be opened");
    }
    SIGNATURES.iter().find(|(_, at, bytes)| at.holds(region, bytes)).map(|(name, ..)| *name)
}

impl At {
    fn holds(self, region: &Region, bytes: &[u8]) -> bool {
        let fits =
            |at: u64| at.checked_add(bytes.len() as u64).is_some_and(|end| end <= region.len());
        let is_at = |at: u64| fits(at) && region.equals(at, bytes);
        match self {
            Start(at) => is_at(at),
            End(before) => region.len().checked_sub(before).is_some_and(is_at),
            Every(first, step, count) => (0..count).any(|i| is_at(first + i * step)),
        }
    }
}

/// Bytes compared at once.
const CHUNK: u64 = 4096;
/// Bytes read at both ends of a device, which has no holes. Between them only the start of each
/// huge page is read, because terabytes would take too long.
const DEVICE_ENDS: u64 = 64 << 20;
const DEVICE_STEP: u64 = 2 << 20;

/// Returns the offset of the first 4 KiB that are not all zeros.
pub fn first_data(region: &Region, is_device: bool) -> Option<u64> {
    let mut at = 0;
    while at < region.len() {
        let data = region.data_within(at, region.len() - at);
        if data.is_empty() {
            return None;
        }
        at = data.start - data.start % CHUNK;
        while at < data.end {
            let len = CHUNK.min(region.len() - at);
            if !region.equals(at, &[0; CHUNK as usize][..len as usize]) {
                return Some(at);
            }
            let is_between = at >= DEVICE_ENDS && at + DEVICE_ENDS < region.len();
            at += if is_device && is_between { DEVICE_STEP } else { CHUNK };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all places of a signature.
    fn places(at: At, len: u64) -> Vec<u64> {
        match at {
            Start(at) => vec![at],
            End(before) => vec![len - before],
            Every(first, step, count) => (0..count).map(|i| first + i * step).collect(),
        }
    }

    #[test]
    fn each_signature_is_found_wherever_it_may_lie() {
        const LEN: u64 = 8 << 20;
        let region = Region::anonymous(LEN).unwrap();
        assert_eq!(find(&region), None);
        for (name, at, bytes) in SIGNATURES {
            for place in places(*at, LEN) {
                region.write(place, bytes);
                assert_eq!(find(&region), Some(*name), "at {place}");
                assert_eq!(first_data(&region, false), Some(place - place % CHUNK));
                region.write(place, &vec![0; bytes.len()]);
            }
        }
        assert_eq!((find(&region), first_data(&region, false)), (None, None));
    }

    #[test]
    fn pools_of_all_layouts_are_found() {
        for layout in Layout::ALL {
            let region = Region::anonymous(*layout.limits().start()).unwrap();
            layout.format(&region, &pool::FormatOptions::default()).unwrap();
            assert_eq!(find(&region), Some("a pool that cannot be opened"), "{layout:?}");
        }
    }

    #[test]
    fn what_is_too_short_for_a_signature_has_none() {
        for len in [1, 511, 4096] {
            assert_eq!(find(&Region::anonymous(len).unwrap()), None);
        }
    }

    #[test]
    fn data_is_found_in_each_huge_page_of_a_device() {
        const LEN: u64 = 256 << 20;
        let region = Region::anonymous(LEN).unwrap();
        assert_eq!(first_data(&region, true), None);
        for place in [CHUNK - 1, DEVICE_ENDS, DEVICE_ENDS + DEVICE_STEP, LEN - 1] {
            region.write(place, b"x");
            assert_eq!(first_data(&region, true), Some(place - place % CHUNK));
            region.write(place, b"\0");
        }
    }
}
