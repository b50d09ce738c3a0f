//! The slots of a cluster: the slot of a key, and the primary of a slot.

/// One of the 16,384 hash slots of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::backend::redis) struct Slot(u16);

impl Slot {
    /// Returns the slot of a key, computed from its hash tag if it has one.
    pub(super) fn of(key: &str) -> Self {
        let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
        let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
        Self(crc16(hashed.as_bytes()) % COUNT)
    }

    /// Returns the slot with this number, or `None` if it is out of range.
    pub(super) fn numbered(number: i64) -> Option<Self> {
        u16::try_from(number).ok().filter(|number| *number < COUNT).map(Self)
    }

    /// Returns all slots in order.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..COUNT).map(Self)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The owner of each slot.
#[derive(Debug)]
pub(super) struct SlotMap<T>(Box<[Option<T>]>);

impl<T> SlotMap<T> {
    pub(super) fn new() -> Self {
        Self((0..COUNT).map(|_| None).collect())
    }

    /// Returns the owner of a slot if it is known.
    pub(super) fn owner(&self, slot: Slot) -> Option<&T> {
        self.0.get(slot.index())?.as_ref()
    }

    /// Sets the owner of a slot.
    pub(super) fn assign(&mut self, slot: Slot, owner: T) {
        if let Some(place) = self.0.get_mut(slot.index()) {
            *place = Some(owner);
        }
    }

    /// Returns the owner of each slot that has one, in the order of the slots.
    pub(super) fn owners(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// CRC-16/XMODEM, which Redis Cluster uses.
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
    fn the_checksum_matches_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn slots_match_the_server() {
        // The replies of Redis 7.0 to `CLUSTER KEYSLOT`.
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
    fn a_counter_is_in_the_slot_of_its_lock_if_braces_pair() {
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
    fn a_number_beyond_the_last_slot_is_rejected() {
        assert_eq!(Slot::numbered(16_383), Some(Slot(16_383)));
        assert_eq!((Slot::numbered(16_384), Slot::numbered(-1)), (None, None));
    }

    #[test]
    fn the_last_assigned_owner_serves_a_slot() {
        let mut table = SlotMap::new();

        table.assign(Slot(7), "a");
        table.assign(Slot(7), "b");

        assert_eq!((table.owner(Slot(7)), table.owner(Slot(8))), (Some(&"b"), None));
        assert_eq!(table.owners().count(), 1);
    }
}
