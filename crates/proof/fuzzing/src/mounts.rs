//! What a program under `keepstone run` believes of mounts: the kernel's table, whose fields the
//! makers of mounts choose, and the announcement in its environment.

use mounts::{Line, PoolMount, Ticket, newest_mount, unescape};

/// Parses the bytes as the table of mounts, then as an announcement.
pub fn table(bytes: &[u8]) {
    for line in bytes.split(|&byte| byte == b'\n') {
        if let Some(line) = Line::parse(line) {
            let _ = (unescape(line.dir), unescape(line.source), line.is_pool());
        }
    }
    for mount in PoolMount::find(bytes) {
        assert!(mount.dir.len() <= bytes.len() && mount.pool.len() <= bytes.len());
    }
    let newest = newest_mount().unwrap_or(0);
    let announcement = PoolMount::announce(bytes, newest);
    let _ = PoolMount::announced(&announcement);
    let _ = PoolMount::announced(bytes);
    let current = [newest.to_string().as_bytes(), b"\t", bytes].concat();
    let _ = PoolMount::announced(&current);
}

/// Parses the bytes as a control name in the root of a mount, and as a ticket.
pub fn names(bytes: &[u8]) {
    if let Some(ticket) = Ticket::parse_root(bytes) {
        assert_eq!(
            ticket.root_name().as_bytes(),
            bytes,
            "a name that is read is one that is written"
        );
    }
    if let Some(ticket) = Ticket::parse(bytes) {
        assert_eq!(ticket.to_string().as_bytes(), bytes);
    }
}

/// Returns lines of pools, of a cache, of a user's own mount and of a nested one.
pub fn table_seeds() -> Vec<Vec<u8>> {
    let pool = "36 35 0:98 / /mnt/my\\040dir rw,noatime shared:1 master:2 - fuse.keepstone /dev/shm/a\\134b rw,user_id=0\n";
    let own = "37 35 0:99 / /home/u/mnt rw,nosuid,nodev - fuse.keepstone /dev/shm/p rw,user_id=1000,allow_other\n";
    let cache = "38 35 0:97 / /mnt/cache ro - fuse.keepstone /dev/shm/c rw,user_id=0,group_id=0\n";
    let nested = "40 36 0:9 / /mnt/my\\040dir/below rw - tmpfs none rw\n";
    [pool.into(), format!("{pool}{nested}"), format!("{own}{cache}{pool}"), format!("7\t{pool}")]
        .map(String::into_bytes)
        .to_vec()
}

/// Returns control names of this version and of an earlier one.
pub fn name_seeds() -> Vec<Vec<u8>> {
    let ticket = Ticket(0xab << 100 | 7);
    [
        ticket.root_name(),
        ticket.to_string(),
        Ticket::DIR.into(),
        ".keepstone-00000000000000ab-12-3".into(),
    ]
    .map(String::into_bytes)
    .to_vec()
}
