//! Header blocks in frames of all sorts, read in pieces.
use super::header_block::PATH_NAMES;
use super::huffman::{CODES, LONGEST_CODE};
use super::*;

/// Codes of RFC 7541, appendix B, with their lengths.
const KNOWN: &[(char, u32, usize)] = &[
    ('\0', 0x1ff8, 13),
    ('\n', 0x3fff_fffc, 30),
    ('#', 0xffa, 12),
    ('/', 0x18, 6),
    ('0', 0x0, 5),
    ('<', 0x7ffc, 15),
    ('>', 0xffb, 12),
    ('X', 0xfc, 8),
    ('a', 0x3, 5),
    ('x', 0x79, 7),
    ('~', 0x1ffd, 13),
    ('\u{ff}', 0x3ff_ffee, 26),
];

fn coded(text: &str) -> Vec<u8> {
    let mut bits = Vec::new();
    for wanted in text.chars() {
        let known = KNOWN.iter().find(|(known, ..)| *known == wanted);
        let (_, code, length) = known.unwrap();
        bits.extend((0..*length).rev().map(|bit| (code >> bit) as u8 & 1));
    }
    while bits.len() % 8 > 0 {
        bits.push(1);
    }
    let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| byte << 1 | bit);
    bits.chunks(8).map(byte).collect()
}

fn text(is_coded: bool, text: &[u8]) -> Vec<u8> {
    let flag = if is_coded { 0x80 } else { 0 };
    let mut out = match text.len() {
        length @ 0..127 => vec![flag | length as u8],
        length => {
            let length = length - 127;
            vec![flag | 127, length as u8 & 127 | 128, (length >> 7) as u8]
        }
    };
    out.extend_from_slice(text);
    out
}

/// The same with a length of as many bytes as h2 takes, if it has more than one at all.
fn padded_text(is_coded: bool, content: &[u8]) -> Vec<u8> {
    let mut out = text(is_coded, content);
    if content.len() >= 127 {
        out[2] |= 0x80;
        out.splice(3..3, [0x80, 0x00]);
    }
    out
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags, 0, 0, 0, 1]].concat();
    [&head[..], payload].concat()
}

/// Returns what a client sent, after it was read in pieces of this size.
fn read(sent: &[u8], piece: usize) -> Vec<u8> {
    let mut bytes = [&[b'#'; PREFACE as usize][..], sent].concat();
    let mut reader = FrameReader::default();
    for piece in bytes.chunks_mut(piece) {
        reader.inspect(piece);
    }
    bytes.split_off(PREFACE as usize)
}

/// Asserts that each path of a header block is spoiled, in frames of all sorts.
fn assert_spoiled(block: &[u8], wanted: &[u8]) {
    let data = frame(0, PADDED, b"##:path#");
    let in_frames = |block: &[u8]| {
        let middle = block.len() / 2;
        let padded = [&[3], block, b"###"].concat();
        let late = [&[1, b'#', b'#', b'#', b'#', b'#'], block, b"#"].concat();
        let early = [&[b'#'; 5], &block[..middle]].concat();
        [
            data.clone(),
            frame(HEADERS, 0, block),
            frame(HEADERS, PADDED, &padded),
            data.clone(),
            frame(HEADERS, PADDED | PRIORITY, &late),
            frame(HEADERS, PRIORITY, &early),
            frame(CONTINUATION, 0, b""),
            frame(CONTINUATION, 4, &block[middle..]),
            data.clone(),
        ]
        .concat()
    };
    let sent = in_frames(block);
    for piece in [1, 2, 3, 5, 8, sent.len() + PREFACE as usize] {
        assert_eq!(
            read(&sent, piece),
            in_frames(wanted),
            "in pieces of {piece}"
        );
    }
}

#[test]
fn number_signs_in_paths_become_what_is_refused() {
    let long = "/a#x".repeat(100);
    for path in [
        "",
        "#",
        "/a#x#",
        "/\n#\u{ff}#~#<X0",
        "/a/x",
        "/>#\0#",
        &long,
    ] {
        let wanted = path.replace('#', ">");
        for is_coded in [false, true] {
            let of = |path: &str| {
                let plain = path.as_bytes();
                let path = if is_coded {
                    coded(path)
                } else {
                    plain.to_vec()
                };
                [
                    // A change of the table's size, `:method: GET`, and a number of two bytes.
                    &[0x3f, 0xe1, 0x1f, 0x82, 0xff, 0x00][..],
                    // `:path` by its numbers, and by its name.
                    &[0x44],
                    &text(is_coded, &path),
                    &[0x05],
                    &padded_text(is_coded, &path),
                    &[0x00],
                    &text(false, b":path"),
                    &text(is_coded, &path),
                    &[0x40],
                    &text(true, PATH_NAMES[1]),
                    &text(is_coded, &path),
                    // By the number of that entry, in two bytes and in one.
                    &[0x0f, 0x2f],
                    &text(is_coded, &path),
                    &[0x7e],
                    &text(is_coded, &path),
                    // Others keep theirs: by number, also a large one, and by name.
                    &[0x41],
                    &text(false, b"a#b"),
                    &[0x0f, 0x2f],
                    &text(false, b"a#b"),
                    &[0x7f, 0x60],
                    &text(false, b"/#"),
                    &[0x1f, 0x80, 0x01],
                    &text(true, &coded("/#")),
                    &[0x10],
                    &text(false, b":path2"),
                    &text(false, b"/#"),
                ]
                .concat()
            };
            assert_spoiled(&of(path), &of(&wanted));
        }
    }
}

#[test]
fn what_is_no_header_block_is_left_alone() {
    let path = [&[0x04][..], &text(false, b"/#")].concat();
    let good = frame(HEADERS, 0, &path);
    for bad in [
        frame(HEADERS, PADDED, b""),
        frame(HEADERS, PADDED, b"\x09#"),
        frame(HEADERS, PRIORITY, b"####"),
    ] {
        let sent = [bad.clone(), good.clone()].concat();
        let wanted = [bad, read(&good, good.len())].concat();
        assert_eq!(read(&sent, 1), wanted);
    }
    // A length that is too long ends the looking at this block only.
    let odd = [0x04, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, b'#'];
    let odd = frame(HEADERS, 0, &odd);
    let sent = [odd.clone(), good.clone()].concat();
    let wanted = [odd, read(&good, good.len())].concat();
    assert_ne!(read(&good, good.len()), good);
    assert_eq!(read(&sent, 1), wanted);
}

#[test]
fn the_codes_are_those_of_the_standard() {
    let (mut first, mut all) = (0, 0);
    let mut firsts = vec![0];
    for length in 1..=LONGEST_CODE {
        first = (first + CODES[length - 1]) << 1;
        firsts.push(first);
        all += CODES[length];
    }
    assert_eq!(all, 256);
    for (known, code, length) in KNOWN {
        let range = firsts[*length]..firsts[*length] + CODES[*length];
        assert!(range.contains(code), "{known:?}");
    }
}

#[test]
fn a_head_is_unfinished_until_its_last_frame_is_complete() {
    let mut reader = FrameReader::default();
    let mut read = |bytes: &[u8]| {
        reader.inspect(&mut bytes.to_vec());
        reader.unfinished()
    };
    assert_eq!(read(&[0; PREFACE as usize]), 0);
    let block = [0x82; 100];
    assert_eq!(read(&frame(HEADERS, 0, &block)), 109);
    assert_eq!(read(&frame(CONTINUATION, 0, &block)), 218);
    let last = frame(CONTINUATION, END_HEADERS, &block);
    assert_eq!(read(&last[..60]), 278);
    assert_eq!(read(&last[60..]), 0);
    // Of a frame, nothing is complete before its end.
    let whole = frame(HEADERS, END_HEADERS, &block);
    assert_eq!(read(&whole[..50]), 50);
    assert_eq!(read(&whole[50..]), 0);
    assert_eq!(read(&frame(0, 0, &block)), 0, "data");
    assert_eq!(read(&frame(HEADERS, END_HEADERS, &[])), 0);
}

/// Returns what is kept after many requests with such fields and a field of 10,000 bytes that the table
/// does not take.
fn kept_of(fields: &[u8], filler_is_coded: bool) -> usize {
    let mut reader = FrameReader::default();
    reader.inspect(&mut [0; PREFACE as usize]);
    let filler = [&[0x0f, 0x00][..], &text(filler_is_coded, &[b'a'; 10_000])].concat();
    let request = frame(HEADERS, END_HEADERS, &[fields, &filler].concat());
    for _ in 0..200 {
        reader.inspect(&mut request.clone());
    }
    reader.kept_for_hpack()
}

#[test]
fn entries_whose_texts_are_slices_keep_what_was_read_around_them() {
    let literal = |name: &[u8], value: &[u8]| [&[0x40][..], name, value].concat();
    let of_number = |number: &[u8], value: &[u8]| [number, value].concat();
    let plain = text(false, b"x");
    let huffman = text(true, &coded("x"));
    let authority = [0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    let name = literal(&text(false, b"x-name"), &plain);
    let authority_then = |rest: &[u8]| [&of_number(&[0x41], &plain), rest].concat();
    // With the requests whose entries are in the table at once.
    for (fields, requests) in [
        (of_number(&[0x41], &plain), 4096 / 43),
        (of_number(&[0x44], &plain), 4096 / 38),
        (of_number(&[0x47], &plain), 4096 / 40),
        (literal(&text(false, b":authority"), &plain), 4096 / 43),
        (literal(&text(true, &authority), &plain), 4096 / 43),
        // The newest entry of the table is named by one byte, and the one before it by two.
        (authority_then(&of_number(&[0x7e], &plain)), 4096 / 43 / 2),
        (
            [
                &authority_then(&name)[..],
                &of_number(&[0x7f, 0x00], &plain),
            ]
            .concat(),
            4096 / (43 + 39 + 43),
        ),
        // Decoded texts lie elsewhere, where nothing else was decoded.
        (of_number(&[0x44], &huffman), 0),
        // These are copied, or the table does not take them.
        (of_number(&[0x42], &plain), 0),
        (name.clone(), 0),
        ([&name[..], &of_number(&[0x7e], &plain)].concat(), 0),
        (of_number(&[0x01], &plain), 0),
        (of_number(&[0x11], &plain), 0),
        (vec![0x82], 0),
        // The client wants no table.
        ([&[0x20][..], &of_number(&[0x41], &plain)].concat(), 0),
        // The client wants a table of 100 bytes.
        ([&[0x3f, 69][..], &of_number(&[0x41], &plain)].concat(), 2),
    ] {
        let found = kept_of(&fields, false);
        let expected = requests * 10_000;
        let is_right = found.abs_diff(expected) <= expected / 50 + 20;
        assert!(is_right, "{fields:02x?}: {found} instead of {expected}");
    }
    let decoded = kept_of(&of_number(&[0x44], &huffman), true);
    let buffer = 2 * 10_000;
    assert_eq!(decoded, 4096 / 38 * 2 * 10_000 + buffer);
}

/// h2 decodes the name of a field again for each frame, until its value is complete.
#[test]
fn names_in_huffmans_code_count_for_each_frame_in_which_they_are_decoded() {
    let kept = |frames: usize| {
        let mut reader = FrameReader::default();
        reader.inspect(&mut [0; PREFACE as usize]);
        let path = [&[0x44][..], &text(true, &coded("/"))].concat();
        let name = [&[0x10][..], &text(true, &[0xf3; 400])].concat();
        reader.inspect(&mut frame(HEADERS, 0, &[&path[..], &name].concat()));
        for _ in 0..frames {
            reader.inspect(&mut frame(CONTINUATION, 0, &[]));
        }
        let rest = [&text(false, b"x")[..], &path].concat();
        reader.inspect(&mut frame(CONTINUATION, END_HEADERS, &rest));
        reader.kept_for_hpack()
    };
    assert_eq!(kept(4) - kept(0), 4 * 2 * 400);
}

#[test]
fn values_count_with_the_size_of_their_text() {
    let mut reader = FrameReader::default();
    reader.inspect(&mut [0; PREFACE as usize]);
    // 1,000 bytes of code for 1,600 of text, of which the table has room for two.
    let value = text(true, &coded(&"0".repeat(1_600)));
    let request = frame(HEADERS, END_HEADERS, &[&[0x44][..], &value].concat());
    for _ in 0..10 {
        reader.inspect(&mut request.clone());
    }
    assert_eq!(reader.block.table.entries(), 2);
}

/// What h2 and this reader would understand otherwise is changed to what both understand alike.
#[test]
fn tables_stay_the_same_as_those_of_h2() {
    let block = [&[0x04][..], &text(false, b"/#")].concat();
    let path = [&[0x04][..], &text(false, b"/>")].concat();
    let headers = |flags: u8, stream: u8, payload: &[u8]| {
        let mut frame = frame(HEADERS, flags, payload);
        frame[8] = stream;
        frame
    };
    // A promise is a continuation, which ends the connection without a head before it.
    let promise = frame(
        PUSH_PROMISE,
        END_HEADERS,
        &[&[0, 0, 0, 2], &block[..]].concat(),
    );
    let continuation = frame(
        CONTINUATION,
        END_HEADERS,
        &[&[0, 0, 0, 2], &block[..]].concat(),
    );
    // A head depends on its own stream, with the bit of an exclusive dependency and without.
    let depends_on = |first: u8, last: u8, block: &[u8]| {
        let payload = [&[first, 0, 0, last, 16][..], block].concat();
        headers(END_HEADERS | PRIORITY, 3, &payload)
    };
    let padded = |last: u8, block: &[u8]| {
        let payload = [&[1, 0, 0, 0, last, 16][..], block, b"#"].concat();
        headers(END_HEADERS | PRIORITY | PADDED, 3, &payload)
    };
    // A field without a name, with a value of one byte.
    let nameless = |length: u8| headers(END_HEADERS, 1, &[0x10, length, b'x', 0x01, b'y']);
    for (sent, wanted) in [
        (promise, None),
        (depends_on(0, 3, &block), Some(depends_on(0, 2, &path))),
        (
            depends_on(0x80, 3, &block),
            Some(depends_on(0x80, 2, &path)),
        ),
        (depends_on(0, 5, &block), Some(depends_on(0, 5, &path))),
        (depends_on(3, 3, &block), Some(depends_on(3, 3, &path))),
        (padded(3, &block), Some(padded(2, &path))),
        (nameless(0x00), Some(nameless(1))),
        (nameless(0x80), Some(nameless(1))),
    ] {
        for piece in [1, 2, 3, 5, sent.len()] {
            let found = read(&sent, piece);
            match &wanted {
                Some(wanted) => assert_eq!(&found, wanted, "in pieces of {piece}"),
                None => assert_eq!(found[..HEAD], continuation[..HEAD]),
            }
        }
    }
}
