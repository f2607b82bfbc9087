//! Tests the memory of policies: at most 64 bytes for each object.

use eviction::PolicyKind;

/// The maximum bytes for each object in a large cache, where constant costs do not matter.
const BYTES_MAX: usize = 64;

/// Fills a policy, then replaces its objects until there are as many ghosts as it will have.
#[test]
fn an_object_takes_at_most_64_bytes() {
    for kind in PolicyKind::ALL {
        let (mut policy, _marks) = kind.policy();
        let mut worst = 0;
        for key in 0..600_000u64 {
            policy.insert(key, 1 + key % 7);
            // Evicts half of the objects while the cache grows, as ghosts come with evictions.
            if key % 2 == 0 && key > 1000 {
                let victim = policy.victim(&mut |_| false).expect("there are objects");
                policy.remove(victim);
            }
            if key > 100_000 && key % 64 == 0 {
                worst = worst.max(policy.bytes_of_memory() * 10 / policy.len());
            }
        }
        println!("{kind}: at worst {}.{} bytes an object", worst / 10, worst % 10);
        assert!(worst <= BYTES_MAX * 10, "{kind}: {worst} tenths of a byte");
    }
}

/// A cache that stays full needs no more memory, whatever objects pass through it.
#[test]
fn memory_does_not_grow_while_a_cache_is_full() {
    for kind in PolicyKind::ALL {
        let (mut policy, _marks) = kind.policy();
        let mut bytes = 0;
        for key in 0..200_000u64 {
            policy.insert(key, 1);
            if policy.len() > 10_000 {
                let victim = policy.victim(&mut |_| false).expect("there are objects");
                policy.remove(victim);
            }
            if key == 50_000 {
                bytes = policy.bytes_of_memory();
            }
        }
        assert_eq!(policy.bytes_of_memory(), bytes, "{kind}");
    }
}
