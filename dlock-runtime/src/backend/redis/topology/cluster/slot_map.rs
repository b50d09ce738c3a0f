//! The slots of a cluster: which one a key is in, and who serves it.
//!
//! Not here: how it is found out who serves what (`map`), and that it is somebody else (`redirects`).

/// One of the parts in which a cluster deals out its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::backend::redis) struct Slot(u16);

impl Slot {
    /// Returns the slot of a key: that of its hash tag, where it has one.
    pub(super) fn of(key: &str) -> Self {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        Self(crc16(hashed.as_bytes()) % COUNT)
    }

    /// Returns the slot of this number, where there is one.
    pub(super) fn numbered(number: i64) -> Option<Self> {
        u16::try_from(number).ok().filter(|number| *number < COUNT).map(Self)
    }

    /// Returns all slots in their order.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..COUNT).map(Self)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Who serves each slot.
#[derive(Debug)]
pub(super) struct SlotMap<T>(Box<[Option<T>]>);

impl<T> SlotMap<T> {
    pub(super) fn new() -> Self {
        Self((0..COUNT).map(|_| None).collect())
    }

    /// Returns who serves a slot, where that is known.
    pub(super) fn owner(&self, slot: Slot) -> Option<&T> {
        self.0.get(slot.index())?.as_ref()
    }

    /// Notes who serves a slot.
    pub(super) fn give(&mut self, slot: Slot, owner: T) {
        if let Some(place) = self.0.get_mut(slot.index()) {
            *place = Some(owner);
        }
    }

    /// Returns who serves slots, once for each.
    pub(super) fn owners(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// CRC-16 as XMODEM has it, which is the cluster's.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        CRC_OF_BYTE.get(usize::from(high ^ byte)).map_or(0, |of_byte| (crc << 8) ^ of_byte)
    })
}

const fn crc_of_byte(byte: u16) -> u16 {
    let (mut crc, mut bit) = (byte << 8, 0);
    while bit < 8 {
        crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        bit += 1;
    }
    crc
}

const CRC_OF_BYTE: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        table[byte as usize] = crc_of_byte(byte);
        byte += 1;
    }
    table
};

const COUNT: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::encoding::codec;

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn a_slot_is_the_one_that_a_server_computes() {
        // As `CLUSTER KEYSLOT` of Redis 7.0 answers.
        for (key, slot) in [
            ("foo", 12_182),
            ("bar", 5_061),
            ("{user1000}.following", 3_443),
            ("{user1000}.followers", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("foo{bar}{zap}", 5_061),
            ("a}b{c", 13_587),
        ] {
            assert_eq!(Slot::of(key), Slot(slot), "{key}");
        }
    }

    #[test]
    fn a_counter_is_in_the_slot_of_its_lock_unless_a_brace_is_left_over() {
        let same_node = |key: &str| Slot::of(&codec::counter(key)) == Slot::of(key);

        for key in [
            "dlock:order:7",
            "dlock:{order}:7",
            "{a}",
            "a{b}{c",
            "a{",
            "{{a}",
            "a{b{c}d}",
            "order:7#",
            &"x".repeat(512),
        ] {
            assert!(same_node(key), "{key}");
        }
        for key in ["a}b", "a{}b", "a{}{b}", "}{"] {
            assert!(!same_node(key), "{key}");
        }
    }

    #[test]
    fn a_number_beyond_the_last_slot_is_none() {
        assert_eq!(Slot::numbered(16_383), Some(Slot(16_383)));
        assert_eq!((Slot::numbered(16_384), Slot::numbered(-1)), (None, None));
    }

    #[test]
    fn a_slot_is_served_by_whom_it_was_given_to_last() {
        let mut table = SlotMap::new();

        table.give(Slot(7), "a");
        table.give(Slot(7), "b");

        assert_eq!((table.owner(Slot(7)), table.owner(Slot(8))), (Some(&"b"), None));
        assert_eq!(table.owners().count(), 1);
    }
}
