//! A sorted set that takes little more memory than its members. A B-tree whose members come in
//! order is half empty, and those who wait come in order.

use std::collections::VecDeque;

/// How many members a chunk has at most. Moving as many takes less than a microsecond.
const CHUNK_MAX: usize = 256;

/// A member of a sorted set.
pub(super) trait Keyed {
    /// What the members are sorted by.
    type Key: Ord + Copy;

    fn key(&self) -> Self::Key;
}

/// Members with different keys, sorted, in chunks of which none is empty.
#[derive(Debug)]
pub(super) struct SortedSet<T> {
    chunks: Vec<VecDeque<T>>,
}

impl<T> Default for SortedSet<T> {
    fn default() -> SortedSet<T> {
        SortedSet { chunks: Vec::new() }
    }
}

impl<T: Keyed> SortedSet<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(super) fn first(&self) -> Option<&T> {
        self.chunks.first()?.front()
    }

    /// Returns the chunk in which a key is or would be; `None`: it is after all members.
    fn chunk_of(&self, key: T::Key) -> Option<usize> {
        let is_before = |chunk: &VecDeque<T>| chunk.back().is_some_and(|last| last.key() < key);
        let index = self.chunks.partition_point(is_before);
        (index < self.chunks.len()).then_some(index)
    }

    fn find(&self, key: T::Key) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(key)?;
        let position = self.chunks[chunk].binary_search_by_key(&key, Keyed::key).ok()?;
        Some((chunk, position))
    }

    pub(super) fn get(&self, key: T::Key) -> Option<&T> {
        self.find(key).map(|(chunk, position)| &self.chunks[chunk][position])
    }

    /// Returns a member, whose key must not be changed.
    pub(super) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        self.find(key).map(|(chunk, position)| &mut self.chunks[chunk][position])
    }

    /// Inserts a member, or replaces the one with its key.
    pub(super) fn insert(&mut self, member: T) {
        let Some(index) = self.chunk_of(member.key()) else { return self.push(member) };
        let next_has_room = self.chunks.get(index + 1).is_none_or(|chunk| chunk.len() < CHUNK_MAX);
        let chunk = &mut self.chunks[index];
        match chunk.binary_search_by_key(&member.key(), Keyed::key) {
            Ok(position) => chunk[position] = member,
            Err(position) if chunk.len() < CHUNK_MAX => chunk.insert(position, member),
            // Members that come nearly in order find room in the chunk of the latest.
            Err(position) if next_has_room => {
                let last = chunk.pop_back();
                chunk.insert(position, member);
                match self.chunks.get_mut(index + 1) {
                    Some(next) => last.into_iter().for_each(|last| next.push_front(last)),
                    None => self.chunks.push(last.into_iter().collect()),
                }
            }
            Err(position) => {
                let mut after = chunk.split_off(CHUNK_MAX / 2);
                match position.checked_sub(CHUNK_MAX / 2) {
                    Some(position) => after.insert(position, member),
                    None => chunk.insert(position, member),
                }
                self.chunks.insert(index + 1, after);
            }
        }
    }

    /// Adds a member after all others.
    fn push(&mut self, member: T) {
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK_MAX) {
            Some(chunk) => chunk.push_back(member),
            None => self.chunks.push(VecDeque::from([member])),
        }
    }

    pub(super) fn remove(&mut self, key: T::Key) -> Option<T> {
        let (chunk, position) = self.find(key)?;
        self.remove_at(chunk, position)
    }

    pub(super) fn pop_first(&mut self) -> Option<T> {
        if self.is_empty() { None } else { self.remove_at(0, 0) }
    }

    fn remove_at(&mut self, index: usize, position: usize) -> Option<T> {
        let removed = self.chunks[index].remove(position);
        if self.chunks[index].is_empty() {
            self.chunks.remove(index);
        } else {
            self.join(index);
            index.checked_sub(1).into_iter().for_each(|previous| self.join(previous));
        }
        removed
    }

    /// Makes a chunk and the next one, if they fill less than half of one together, a single one.
    fn join(&mut self, index: usize) {
        let Some(next) = self.chunks.get(index + 1) else { return };
        if self.chunks[index].len() + next.len() < CHUNK_MAX / 2 {
            let next = self.chunks.remove(index + 1);
            self.chunks[index].extend(next);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Returns the members from a key on.
    pub(super) fn iter_from(&self, key: T::Key) -> impl Iterator<Item = &T> {
        let chunk = self.chunk_of(key).unwrap_or(self.chunks.len());
        self.chunks[chunk..].iter().flatten().skip_while(move |member| member.key() < key)
    }

    /// Returns how many members are before a key.
    pub(super) fn count_before(&self, key: T::Key) -> usize {
        let Some(index) = self.chunk_of(key) else {
            return self.chunks.iter().map(VecDeque::len).sum();
        };
        let whole: usize = self.chunks[..index].iter().map(VecDeque::len).sum();
        whole + self.chunks[index].partition_point(|member| member.key() < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Member(u16, u8);

    impl Keyed for Member {
        type Key = u16;

        fn key(&self) -> u16 {
            self.0
        }
    }

    /// What happens to a set and to a map that is known to be right.
    #[derive(Clone, Debug)]
    enum Step {
        Insert(u16, u8),
        /// As many as these, in order.
        InsertMany(u16, u16),
        Remove(u16),
        RemoveMany(u16, u16),
        Pop(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = 0..3_000_u16;
        let step = prop_oneof![
            (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Insert(key, value)),
            (key.clone(), 0..900_u16).prop_map(|(key, count)| Step::InsertMany(key, count)),
            key.clone().prop_map(Step::Remove),
            (key, 0..900_u16).prop_map(|(key, count)| Step::RemoveMany(key, count)),
            (0..600_u16).prop_map(Step::Pop),
        ];
        proptest::collection::vec(step, 1..40)
    }

    fn check(set: &SortedSet<Member>, map: &BTreeMap<u16, u8>) {
        let members: Vec<(u16, u8)> = set.iter().map(|member| (member.0, member.1)).collect();
        let expected: Vec<(u16, u8)> = map.iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!(members, expected);
        assert_eq!(set.is_empty(), map.is_empty());
        assert_eq!(set.first().map(Keyed::key), map.keys().next().copied());
        for key in [0, 1, 700, 1_500, 2_999, u16::MAX] {
            let value = map.get(&key).copied();
            assert_eq!(set.get(key).map(|member| member.1), value);
            assert_eq!(set.count_before(key), map.range(..key).count());
            assert!(set.iter_from(key).map(Keyed::key).eq(map.range(key..).map(|(key, _)| *key)));
        }
        let sizes: Vec<usize> = set.chunks.iter().map(VecDeque::len).collect();
        assert!(sizes.iter().all(|size| (1..=CHUNK_MAX).contains(size)), "{sizes:?}");
    }

    proptest! {
        #[test]
        fn it_has_the_members_of_a_map(steps in steps()) {
            let (mut set, mut map) = (SortedSet::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        set.insert(Member(key, value));
                        map.insert(key, value);
                    }
                    Step::InsertMany(first, count) => {
                        for key in first..first + count {
                            set.insert(Member(key, 1));
                            map.insert(key, 1);
                        }
                    }
                    Step::Remove(key) => {
                        let removed = set.remove(key).map(|member| member.1);
                        assert_eq!(removed, map.remove(&key));
                    }
                    Step::RemoveMany(first, count) => {
                        for key in first..first + count {
                            let removed = set.remove(key).map(|member| member.1);
                            assert_eq!(removed, map.remove(&key));
                        }
                    }
                    Step::Pop(count) => {
                        for _ in 0..count {
                            let popped = set.pop_first().map(|member| (member.0, member.1));
                            assert_eq!(popped, map.pop_first());
                        }
                    }
                }
                if let Some(member) = set.get_mut(1_500) {
                    member.1 = 9;
                    map.insert(1_500, 9);
                }
                check(&set, &map);
            }
        }
    }

    #[test]
    fn members_that_come_in_order_fill_their_chunks() {
        let mut set = SortedSet::default();
        (0..10_000).for_each(|key| set.insert(Member(key, 0)));
        assert_eq!(set.chunks.len(), 10_000_usize.div_ceil(CHUNK_MAX));
    }

    #[test]
    fn members_that_come_nearly_in_order_fill_their_chunks_too() {
        let mut set = SortedSet::default();
        for block in 0..200_u16 {
            (0..50).for_each(|at| set.insert(Member(block * 50 + at * 7 % 50, 0)));
        }
        let members = set.iter().map(|member| member.0);
        assert!(members.eq(0..10_000));
        let least = 10_000_usize.div_ceil(CHUNK_MAX);
        assert!(set.chunks.len() <= least + least / 10, "{} chunks", set.chunks.len());
    }

    #[test]
    fn what_is_left_of_many_members_is_in_few_chunks() {
        let mut set = SortedSet::default();
        (0..10_000).for_each(|key| set.insert(Member(key, 0)));
        for key in (0..10_000).filter(|key| key % 100 != 0) {
            set.remove(key);
        }
        assert!(set.chunks.len() <= 3, "{}", set.chunks.len());
    }
}
