//! The order in which Spark iterates settings that have a prefix in common. Lists of the pod, such as its variables and volumes, are in
//! this order. It is that of hash tables, one after the other: of `SparkConf`'s `java.util.concurrent.ConcurrentHashMap`, of the mutable
//! set of pairs that `SparkConf.getAll` makes of it, and of the immutable map that `getAllWithPrefix(…).toMap` makes.
//!
//! Spark 3 is built with Scala 2.12, and Spark 4 with 2.13, whose tables differ.

type Entry<'e> = (&'e str, &'e str);

/// Immutable maps of up to so many entries keep the order in which they are made; larger ones are hash tries.
const SMALL: usize = 4;

/// Sorts all settings as `SparkConf.getAll` has them.
pub(super) fn set_order<'e>(entries: impl Iterator<Item = Entry<'e>>, is_2_12: bool) -> Vec<Entry<'e>> {
    let mut all: Vec<Entry<'e>> = entries.collect();
    concurrent_order(&mut all);
    if is_2_12 { flat_table(&all) } else { chained_table(all) }
}

/// Sorts the entries as an immutable map of them does.
pub(super) fn map_order(entries: Vec<Entry<'_>>, is_2_12: bool) -> Vec<Entry<'_>> {
    if entries.len() <= SMALL {
        return entries;
    }
    let hashed = entries.into_iter().map(|entry| (improved(java_hash(entry.0)), entry)).collect();
    let mut out = Vec::new();
    trie(hashed, 0, is_2_12, &mut out);
    out
}

/// `String.hashCode`
fn java_hash(text: &str) -> u32 {
    text.encode_utf16().fold(0, |hash: u32, unit| hash.wrapping_mul(31).wrapping_add(unit.into()))
}

/// `ConcurrentHashMap`: of keys in one bin, the order here is that of the text.
fn concurrent_order(all: &mut [Entry<'_>]) {
    let mut bins = 16;
    while all.len() >= bins - bins / 4 {
        bins *= 2;
    }
    all.sort_by_key(|(key, _)| {
        let hash = java_hash(key);
        (hash ^ (hash >> 16)) as usize & (bins - 1)
    });
}

/// `Tuple2.hashCode`: MurmurHash3 of both parts, since 2.13 after the name of the class.
fn pair_hash((key, value): Entry<'_>, is_2_12: bool) -> u32 {
    let mix = |hash: u32, part: u32| {
        let part = part.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        (hash ^ part).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    };
    let mut hash = 0xcafe_babe;
    if !is_2_12 {
        hash = mix(hash, java_hash("Tuple2"));
    }
    hash = mix(mix(hash, java_hash(key)), java_hash(value)) ^ 2;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// `mutable.HashSet` of 2.13: buckets, each sorted by the signed hash.
fn chained_table(mut all: Vec<Entry<'_>>) -> Vec<Entry<'_>> {
    let mut buckets = 16;
    while all.len() >= buckets / 4 * 3 {
        buckets *= 2;
    }
    all.sort_by_cached_key(|entry| {
        let hash = pair_hash(*entry, false);
        let hash = hash ^ (hash >> 16);
        (hash as usize & (buckets - 1), hash.cast_signed())
    });
    all
}

/// `mutable.HashSet` of 2.12: a table in which an entry takes the next free place (`FlatHashTable`).
fn flat_table<'e>(all: &[Entry<'e>]) -> Vec<Entry<'e>> {
    let mut table: Vec<Option<Entry<'e>>> = vec![None; 32];
    let mut count = 0;
    for entry in all {
        place(&mut table, *entry);
        count += 1;
        if count >= table.len() * 450 / 1000 {
            let old = std::mem::take(&mut table);
            table = vec![None; old.len() * 2];
            old.into_iter().flatten().for_each(|entry| place(&mut table, entry));
        }
    }
    table.into_iter().flatten().collect()
}

fn place<'e>(table: &mut [Option<Entry<'e>>], entry: Entry<'e>) {
    let bits = table.len().trailing_zeros();
    let swapped = pair_hash(entry, true).wrapping_mul(0x9e37_75cd).swap_bytes().wrapping_mul(0x9e37_75cd);
    let at = (swapped.rotate_right(bits) >> (u32::BITS - bits)) as usize;
    let (before, from) = table.split_at_mut(at);
    if let Some(free) = from.iter_mut().chain(before).find(|place| place.is_none()) {
        *free = Some(entry);
    }
}

/// `Hashing.improve`
fn improved(hash: u32) -> u32 {
    let mut hash = hash.wrapping_add(!(hash << 9));
    hash ^= hash >> 14;
    hash = hash.wrapping_add(hash << 4);
    hash ^ (hash >> 10)
}

/// A node of a hash trie has 32 places, by the next five bits of a hash. Scala 2.12 iterates them in order; 2.13 first those with a single
/// entry, and then those with another node.
fn trie<'e>(entries: Vec<(u32, Entry<'e>)>, level: u32, is_2_12: bool, out: &mut Vec<Entry<'e>>) {
    if level >= u32::BITS {
        out.extend(entries.into_iter().map(|(_, entry)| entry));
        return;
    }
    let mut places: [Vec<(u32, Entry<'e>)>; 32] = Default::default();
    for entry in entries {
        if let Some(place) = places.get_mut(((entry.0 >> level) & 31) as usize) {
            place.push(entry);
        }
    }
    let mut nodes = Vec::new();
    for place in places {
        match place.as_slice() {
            [] => {}
            [(_, entry)] => out.push(*entry),
            _ if is_2_12 => trie(place, level + 5, is_2_12, out),
            _ => nodes.push(place),
        }
    }
    for node in nodes {
        trie(node, level + 5, is_2_12, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<(String, String)> {
        (0..count).map(|number| (format!("key{number}"), format!("v{number}"))).collect()
    }

    fn numbers(order: &[Entry<'_>]) -> Vec<u32> {
        order.iter().map(|(key, _)| key.trim_start_matches("key").parse().unwrap()).collect()
    }

    /// Printed by programs that were compiled with scala-library 2.13.18 and 2.12.18.
    #[test]
    fn orders_are_those_of_scala() {
        assert_eq!(java_hash("spark"), 109_638_365);
        assert_eq!(pair_hash(("a", "b"), false), 961_399_813);
        assert_eq!(pair_hash(("a", "b"), true).cast_signed(), -900_438_667);
        let settings = entries(20);
        let settings: Vec<Entry<'_>> = settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            numbers(&chained_table(settings.clone())),
            [15, 5, 16, 12, 11, 19, 6, 13, 1, 14, 10, 3, 18, 9, 8, 4, 0, 7, 2, 17]
        );
        assert_eq!(
            numbers(&flat_table(&settings)),
            [0, 5, 10, 16, 6, 9, 15, 13, 3, 2, 7, 17, 18, 12, 14, 4, 8, 19, 11, 1]
        );
    }

    #[test]
    fn no_entry_is_lost() {
        for count in [0, 3, 5, 200] {
            let settings = entries(count);
            for is_2_12 in [true, false] {
                let all = set_order(settings.iter().map(|(key, value)| (key.as_str(), value.as_str())), is_2_12);
                let mut found = numbers(&map_order(all, is_2_12));
                found.sort_unstable();
                assert_eq!(found, (0..u32::try_from(count).unwrap()).collect::<Vec<_>>());
            }
        }
    }
}
