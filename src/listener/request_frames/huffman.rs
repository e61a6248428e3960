//! Huffman's code of HPACK, as far as a reader needs it that keeps no text.
//!
//! Source: RFC 7541, section 5.2 and appendix B.

/// Longest code of Huffman's.
pub(super) const LONGEST_CODE: usize = 30;
/// The number of codes of each length. The codes of a length are consecutive numbers, behind those of
/// the shorter ones. The code of the end, which no string has, is left out.
pub(super) const CODES: [u32; LONGEST_CODE + 1] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 3,
];
/// The codes of `#`, and of `>`, which is one more.
const NUMBER_SIGN: (u32, usize) = (0xffa, 12);

/// Follows a text in Huffman's code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HuffmanReader {
    code: u32,
    length: usize,
    /// The first code of this length.
    first: u32,
    /// The number of codes that were read.
    pub(super) symbols: usize,
}

impl HuffmanReader {
    /// Counts the symbols. If it spoils, makes each `#` a `>`.
    pub(super) fn read(&mut self, bytes: &mut [u8], spoils: bool) {
        for byte in bytes {
            for bit in (0..u8::BITS).rev() {
                self.code = (self.code << 1) | u32::from(*byte >> bit & 1);
                self.first = (self.first + CODES[self.length]) << 1;
                self.length += 1;
                if self.code.wrapping_sub(self.first) < CODES[self.length] {
                    if spoils && (self.code, self.length) == NUMBER_SIGN {
                        *byte |= 1 << bit;
                    }
                    self.end_code();
                } else if self.length == LONGEST_CODE {
                    // The end, which is an error within a text.
                    self.end_code();
                }
            }
        }
    }

    fn end_code(&mut self) {
        *self = Self {
            symbols: self.symbols + 1,
            ..Self::default()
        };
    }
}
