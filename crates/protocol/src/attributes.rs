//! The values that selectors need of an object. They are packed, because every cached object has
//! them.
use std::fmt;
use std::sync::Arc;

/// Width of one entry of the offset table.
const ENTRY: usize = 4;
/// Largest offset the table can hold: four digits of seven bits.
const LIMIT: usize = 1 << (7 * ENTRY);

/// Namespace, name, labels and field values of one object, in one heap allocation. Copies share
/// it.
///
/// The allocation is a string of three parts: a table of end offsets, the storage key, and the
/// values (fields, then labels as key and value, sorted by key). Offsets are written as four
/// seven-bit characters, so that the whole stays valid UTF-8 and values are handed out without
/// checking them again.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectAttributes {
    text: Arc<str>,
    /// Bytes of the namespace at the start of the key; 0 for a cluster-scoped object.
    namespace: u32,
    /// Bytes of the key.
    key: u32,
    /// Number of field values, not counting name and namespace.
    fields: u32,
    /// Number of labels.
    labels: u32,
    /// The uid as shards see it. Eight bytes, where the uid has 36.
    uid_hash: u64,
}

impl ObjectAttributes {
    /// Packs the parts. Labels must be sorted by key without duplicates. `None` if they are
    /// absurdly large.
    pub(super) fn pack<'a>(
        namespace: &str,
        name: &str,
        uid_hash: u64,
        fields: impl Iterator<Item = &'a str> + Clone,
        labels: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Option<Self> {
        let values = || {
            fields
                .clone()
                .chain(labels.clone().flat_map(|(key, value)| [key, value]))
        };
        let key = namespace.len() + usize::from(!namespace.is_empty()) + name.len();
        let size = values().map(str::len).sum::<usize>() + key;
        let count = values().count();
        if size >= LIMIT || count >= LIMIT {
            return None;
        }
        let mut text = String::with_capacity(count * ENTRY + size);
        let mut end = key;
        for value in values() {
            end += value.len();
            for digit in (0..ENTRY).rev() {
                text.push(char::from((end >> (7 * digit)) as u8 & 0x7f));
            }
        }
        text.push_str(namespace);
        if !namespace.is_empty() {
            text.push('/');
        }
        text.push_str(name);
        values().for_each(|value| text.push_str(value));
        Some(Self {
            text: text.into(),
            namespace: namespace.len() as u32,
            key: key as u32,
            fields: fields.count() as u32,
            labels: labels.count() as u32,
            uid_hash,
        })
    }

    /// Returns the namespace, which is empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        &self.key()[..self.namespace as usize]
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        let separator = usize::from(self.namespace > 0);
        &self.key()[self.namespace as usize + separator..]
    }

    /// Returns the key by which upstream orders objects: `namespace/name`, or `name` of a cluster-scoped
    /// object.
    ///
    /// Keys are compared as bytes, so that namespace `a-b` comes before `a`. Source:
    /// `apiserver/pkg/storage/util.go:40-53`.
    pub fn key(&self) -> &str {
        let start = self.entries() * ENTRY;
        &self.text[start..start + self.key as usize]
    }

    /// Returns the hash of the uid, by which shards are cut.
    pub(super) fn uid_hash(&self) -> u64 {
        self.uid_hash
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.labels as usize);
        while low < high {
            let middle = usize::midpoint(low, high);
            let (found, value) = self.label_at(middle);
            match found.cmp(key) {
                std::cmp::Ordering::Equal => return Some(value),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Returns all labels, sorted by key.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.labels as usize).map(|index| self.label_at(index))
    }

    /// Returns the value of the field at a position of the type's [`FieldTable`](super::FieldTable). It is
    /// empty if there is none.
    pub fn field(&self, position: usize) -> &str {
        match position {
            0 => self.name(),
            1 => self.namespace(),
            _ if position - 2 < self.fields as usize => self.value(position - 2),
            _ => "",
        }
    }

    /// Returns the number of bytes on the heap.
    pub fn heap_size(&self) -> usize {
        // Two counters precede the text.
        self.text.len() + 2 * size_of::<usize>()
    }

    /// Shares the memory of `other` if the two are equal. Returns `true` if they are.
    pub fn share_with(&mut self, other: &Self) -> bool {
        let are_equal = self == other;
        if are_equal {
            self.text = Arc::clone(&other.text);
        }
        are_equal
    }

    fn entries(&self) -> usize {
        self.fields as usize + 2 * self.labels as usize
    }

    fn label_at(&self, index: usize) -> (&str, &str) {
        let entry = self.fields as usize + 2 * index;
        (self.value(entry), self.value(entry + 1))
    }

    fn value(&self, entry: usize) -> &str {
        let base = self.entries() * ENTRY;
        let start = if entry == 0 {
            self.key as usize
        } else {
            self.end(entry - 1)
        };
        &self.text[base + start..base + self.end(entry)]
    }

    fn end(&self, entry: usize) -> usize {
        let digits = &self.text.as_bytes()[entry * ENTRY..(entry + 1) * ENTRY];
        digits
            .iter()
            .fold(0, |end, digit| end << 7 | usize::from(*digit))
    }
}

impl fmt::Debug for ObjectAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<&str> = (0..self.fields as usize)
            .map(|index| self.value(index))
            .collect();
        f.debug_struct("ObjectAttributes")
            .field("key", &self.key())
            .field("fields", &fields)
            .field("labels", &self.labels().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(namespace: &str) -> ObjectAttributes {
        let labels = [("app", "web"), ("empty", ""), ("ünïcode", "ß")];
        ObjectAttributes::pack(
            namespace,
            "web-0",
            0,
            ["node-1", "", "true"].into_iter(),
            labels.into_iter(),
        )
        .unwrap()
    }

    #[test]
    fn hands_out_what_was_packed() {
        let packed = sample("shop");
        assert_eq!(
            (packed.namespace(), packed.name(), packed.key()),
            ("shop", "web-0", "shop/web-0")
        );
        assert_eq!(
            (0..7).map(|p| packed.field(p)).collect::<Vec<_>>(),
            ["web-0", "shop", "node-1", "", "true", "", ""]
        );
        assert_eq!(packed.label("app"), Some("web"));
        assert_eq!(packed.label("empty"), Some(""));
        assert_eq!(packed.label("ünïcode"), Some("ß"));
        assert_eq!(packed.label("b"), None);
        assert_eq!(packed.labels().count(), 3);
    }

    #[test]
    fn cluster_scoped_keys_are_bare_names() {
        let packed = sample("");
        assert_eq!(
            (packed.namespace(), packed.name(), packed.key()),
            ("", "web-0", "web-0")
        );
    }

    #[test]
    fn offsets_beyond_seven_bits() {
        let long = "x".repeat(70_000);
        let packed = ObjectAttributes::pack(
            "n",
            &long,
            0,
            [long.as_str(), "y"].into_iter(),
            std::iter::empty(),
        )
        .unwrap();
        assert_eq!(packed.field(2), long);
        assert_eq!(packed.field(3), "y");
    }
}
