"""Hostile bytes: valid files with a few wrong ones, and files that are right in form and wrong in content.

    mutate(seeds, kind, random)     # the same random state gives the same bytes

Half of all cases are changes of bytes that know no format. The others know it: they change a value of the
JSON, a header of the tar file and its checksum, a chunk of the PNG file and its CRC, and so on.
"""

import io
import json
import pickletools
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

_NUMBERS = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
_TEXTS = (
    b"9" * 5_000,
    b"1e999",
    b"-1",
    b"NaN",
    b"-Infinity",
    b"18446744073709551616",
    b"0x10",
    b"1e-999",
    b"0.5",
)
_PIECES = (
    b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\x00", b"\r\n", b"\x1b[31m", b'"', b"{", b"}", b"[", b"]", b",", b":",
    b"null", b"true", b"../../", b"/", b"%s%n", b"<script>", "é\u2028".encode(),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**30,
    10**4_000,
    "", "0", "x", "x" * 20_000, "\ud800", "../../etc/passwd", "/dev/zero", "a\nb\x1b[31m\x00", "<script>",
    [], {}, [[]], [None], [1, 2, 3], {"a": 1}, [{}] * 3, [10**9] * 3, {"": ""}, [0] * 3_000,
)  # fmt: skip


def mutate(seeds: Sequence[bytes], kind: str, random: Random) -> bytes:
    """A case; some have been through several changes."""
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        knowing = _OF_KIND.get(kind, ())
        if knowing and random.random() < 0.5:
            data = random.choice(knowing)(data, random)
        elif random.random() < 0.1:
            data = _splice(data, random.choice(seeds), random)
        else:
            data = random.choice(_BLIND)(data, random)
    return data


def _place(data: bytes, random: Random) -> int:
    # Half of the time near the front, where files keep their headers.
    end = min(len(data), 64) if random.random() < 0.5 else len(data)
    return random.randint(0, end)


def _flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place = min(_place(changed, random), len(changed) - 1)
        changed[place] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def _insert(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    piece = random.choice((random.choice(_PIECES), random.randbytes(random.randint(1, 9)), bytes(512)))
    return data[:place] + piece + data[place:]


def _remove(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + data[place + random.choice((1, 2, 8, 100, 512)) :]


def _overwrite(data: bytes, random: Random) -> bytes:
    """Numbers at the limits of their types, as wrong lengths and offsets are."""
    place, number = _place(data, random), random.choice(_NUMBERS)
    size, order = random.choice((1, 2, 4, 8)), random.choice("<>")
    field = struct.pack(f"{order}Q", number)
    piece = field[:size] if order == "<" else field[-size:]
    return data[:place] + piece + data[place + size :]


def _repeat(data: bytes, random: Random) -> bytes:
    first, last = sorted((_place(data, random), _place(data, random)))
    return data[:last] + data[first:last] * random.choice((1, 2, 50)) + data[last:]


def _splice(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: _place(data, random)] + other[_place(other, random) :]


def _new_number(data: bytes, random: Random) -> bytes:
    digits = [i for i, byte in enumerate(data[:20_000]) if chr(byte).isdigit()]
    if not digits:
        return _overwrite(data, random)
    place = random.choice(digits)
    return data[:place] + random.choice(_TEXTS) + data[place + 1 :]


_BLIND: tuple[Mutation, ...] = (
    _flip_bits, _flip_bits, _cut, _insert, _remove, _overwrite, _overwrite, _repeat, _new_number,
)  # fmt: skip


def _change_json(data: bytes, random: Random) -> bytes:
    """Another value, a lost, renamed or added field, somewhere within."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return _insert(data, random)
    return _dump(_changed(content, random))


def _dump(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _changed(content: Any, random: Random) -> Any:
    inside = (
        [*content]
        if isinstance(content, dict)
        else [*range(len(content))]
        if isinstance(content, list)
        else []
    )
    if not inside or random.random() < 0.15:
        return random.choice(_VALUES)
    key, action = random.choice(inside), random.random()
    content = content.copy()
    if action < 0.1:
        del content[key]
    elif action < 0.2 and isinstance(content, dict):
        content[random.choice(("", "x", "step", "id", "class", "__metadata__", str(key) + "s"))] = (
            content.pop(key)
        )
    elif action < 0.25:
        content = content | {"more": 1} if isinstance(content, dict) else [*content, content[key]]
    else:
        content[key] = _changed(content[key], random)
    return content


def _nest(data: bytes, random: Random) -> bytes:
    """Brackets within brackets, where a value stands."""
    depth = random.choice((50, 900, 1_100, 100_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    places = [i + 1 for i, byte in enumerate(data[:20_000]) if byte == ord(":")] or [0]
    place = random.choice(places)
    return data[:place] + opening * depth + b"1" + closing * depth + b"," + data[place:]


def _double_key(data: bytes, random: Random) -> bytes:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return _repeat(data, random)
    if not isinstance(content, dict) or not content:
        return _insert(data, random)
    key = json.dumps(random.choice([*content])).encode()
    value = _dump(random.choice(_VALUES)).strip()
    place = data.index(b"{") + 1
    return data[:place] + key + b":" + value + b"," + data[place:]


def _change_line(data: bytes, random: Random) -> bytes:
    lines = data.splitlines() or [b""]
    place = random.randrange(len(lines))
    lines[place] = random.choice(_JSON)(lines[place], random).replace(b"\n", b"")
    return b"\n".join(lines) + b"\n"


def _change_safetensors(data: bytes, random: Random) -> bytes:
    """Another header of the right length."""
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + min(size, len(data))]
    changed = _change_json(header, random)
    if random.random() < 0.3:
        changed = random.choice((_nest, _double_key))(header, random)
    return len(changed).to_bytes(8, "little") + changed + data[8 + min(size, len(data)) :]


_FIELDS = ((0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155))


def _change_tar(data: bytes, random: Random) -> bytes:
    """Another field of a header, with a checksum that fits."""
    if len(data) < 512:
        return _insert(data, random)
    start = 512 * random.randrange(len(data) // 512)
    header = bytearray(data[start : start + 512])
    offset, size = random.choice(_FIELDS)
    number = random.choice((f"{random.choice(_NUMBERS):o}".encode(), b"-1", b"\x80" + bytes(7) + b"\xff" * 4))
    text = random.choice((number, random.choice(_PIECES), random.randbytes(size), b"12345678xgSLKDV7"[:1]))
    if size == 1:
        text = random.choice((b"0", b"1", b"2", b"3", b"5", b"7", b"x", b"g", b"S", b"L", b"K", b"\0", b"V"))
    header[offset : offset + size] = text[:size].ljust(size, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:start] + bytes(header) + data[start + 512 :]


def _other_tar(data: bytes, random: Random) -> bytes:
    """Members of every kind, by any name, with extended headers that say anything."""
    buffer = io.BytesIO()
    style = random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=style) as tar:
        for _ in range(random.randint(1, 4)):
            member = tarfile.TarInfo(
                random.choice(("a.png", "../a.png", "/a.jpg", "a.cls", "b/..", "a\nb.png", "é.png"))
            )
            member.type = (
                random.choice(b"01234567xSLK").to_bytes(1, "little") if random.random() < 0.5 else b"0"
            )
            member.linkname = random.choice(("", "a.png", "/etc/passwd", "../../x"))
            content = random.choice((b"", b"1", b"-1", data[:600], random.randbytes(40)))
            member.size = len(content)
            if style == tarfile.PAX_FORMAT and random.random() < 0.5:
                key = random.choice(
                    ("size", "path", "mtime", "GNU.sparse.map", "GNU.sparse.size", "hdrcharset", "uid")
                )
                member.pax_headers = {
                    key: random.choice(("-1", "1e999", "9" * 30, "a", "1,2,3", "BINARY", "\x00"))
                }
            try:
                tar.addfile(member, io.BytesIO(content))
            except (ValueError, OSError):
                continue
    return buffer.getvalue()


def _change_zip(data: bytes, random: Random) -> bytes:
    """The same members with one changed, and names and sizes that do not fit."""
    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
            names = old.namelist()
            victim = random.choice(names)
            for name in names:
                content = old.read(name)
                if name == victim:
                    content = random.choice((_change_pickle, *_BLIND))(content, random)
                    name = random.choice((name, name, name, "../" + name, name.upper(), "/" + name))
                new.writestr(
                    zipfile.ZipInfo(name), content, random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
                )
    except Exception:  # the data is a mutant already
        return _overwrite(data, random)
    return buffer.getvalue()


_OPCODES = tuple(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


def _change_pickle(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    codes = b"".join(random.choices(_OPCODES, k=random.randint(1, 4)))
    argument = random.choice((b"", b"os\nsystem\n", b"\xff\xff\xff\x7f", b"\x04\0\0\0", random.randbytes(4)))
    return data[:place] + codes + argument + data[place + random.choice((0, 0, 1, 4)) :]


def _change_png(data: bytes, random: Random) -> bytes:
    """Another chunk, with a CRC that fits; of other formats, other bytes of the header."""
    if not data.startswith(b"\x89PNG"):
        return _overwrite(data, random)
    chunks, place = [], 8
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    if not chunks:
        return _insert(data, random)
    victim = random.randrange(len(chunks))
    kind, content = chunks[victim]
    content = random.choice(_BLIND)(content, random)
    if random.random() < 0.3:
        kind = random.choice(
            (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"gAMA")
        )
        content = random.choice((b"", b"a\0\0", b"a\0\0" + zlib.compress(bytes(2_000_000)), content))
        chunks.insert(victim, (kind, content))
    else:
        chunks[victim] = kind, content
    return data[:8] + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


_WORDS = (
    b"--help",
    b"--data",
    b"",
    b"-1",
    b"1e999",
    b"nan",
    b"[[",
    b"{",
    b"null",
    b"\x1b[31m",
    b"--x",
    b"9" * 5_000,
)


def _change_words(data: bytes, random: Random) -> bytes:
    """Words of a command line, which stand between zeros."""
    words = data.split(b"\0")
    place, action = random.randrange(len(words)), random.random()
    word = random.choice((*_WORDS, *words))
    if action < 0.2:
        del words[place]
    elif action < 0.5:
        words.insert(place, word)
    else:
        words[place] = word
    return b"\0".join(words)


_JSON = (_change_json, _change_json, _change_json, _change_json, _nest, _double_key)
_OF_KIND: dict[str, Sequence[Mutation]] = {
    "json": _JSON,
    "lines": (_change_line,),
    "safetensors": (_change_safetensors,),
    "tar": (_change_tar, _change_tar, _other_tar),
    "zip": (_change_zip,),
    "pickle": (_change_pickle,),
    "image": (_change_png,),
    "words": (_change_words,),
}
