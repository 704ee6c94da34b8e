//! What "the same request" means: a hash of the fields that define it. Pure.

use std::fmt;

/// A BLAKE3 hash of a request's defining content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a body as it is. No body and an empty body differ.
    pub fn of_body(body: Option<&[u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        match body {
            Some(bytes) => hasher.update(b"\x01").update(bytes),
            None => hasher.update(b"\x00"),
        };
        Self(hasher.finalize().into())
    }

    /// The fingerprint of several parts in order; ("ab", "c") and ("a", "bc") differ.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"\x02");
        for part in parts {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        Self(hasher.finalize().into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The inverse of [`as_bytes`](Fingerprint::as_bytes).
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", blake3::Hash::from(self.0).to_hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_body_and_an_empty_body_differ() {
        assert_ne!(Fingerprint::of_body(None), Fingerprint::of_body(Some(b"")));
    }

    #[test]
    fn the_border_between_parts_counts() {
        let one = Fingerprint::of_parts([b"ab".as_slice(), b"c"]);
        let other = Fingerprint::of_parts([b"a".as_slice(), b"bc"]);
        assert_ne!(one, other);
    }
}
