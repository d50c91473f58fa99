"""Hostile bytes: valid files with a few wrong bytes, and files of valid form with wrong content.

    mutate(seeds, kind, random)     # the same random state gives the same bytes

Half of all mutations ignore the format. The others know it: they change a value in JSON, a header of a tar
file with its checksum, a chunk of a PNG file with its CRC, and so on.
"""

import io
import json
import pickletools
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

_NUMBERS = (0, 1, 2, 7, *(2**i + d for i in (7, 8, 15, 16, 31, 32, 63) for d in (-1, 0)), 2**64 - 1)
_TEXTS = (b"9" * 5_000, *b"1e999 -1 NaN -Infinity 18446744073709551616 0x10 1e-999 0.5".split())
_PIECES = (
    b"\xff\xfe\xfd", b"\xed\xa0\x80", b"\x00", b"\r\n", b"\x1b[31m", b'"', b"{", b"}", b"[", b"]", b",", b":",
    b"null", b"true", b"../../", b"/", b"%s%n", b"<script>", "é\u2028".encode(),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**63, 10**30,
    10**4_000, "", "0", "x", "x" * 20_000, "\ud800", "../../etc/passwd", "/dev/zero", "a\nb\x1b[31m\x00",
    "<script>", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, [{}] * 3, [10**9] * 3, {"": ""}, [0] * 3_000,
)  # fmt: skip
_WORDS = (b"", b"9" * 5_000, *b"--help --data -1 1e999 nan [[ { null \x1b[31m --x".split(b" "))
_TAR_FIELDS = ((0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155))
_TAR_NAMES = ("a.png", "../a.png", "/a.jpg", "a.cls", "b/..", "a\nb.png", "é.png")
_PAX_KEYS = ("size", "path", "mtime", "GNU.sparse.map", "GNU.sparse.size", "hdrcharset", "uid")
_PAX_VALUES = ("-1", "1e999", "9" * 30, "a", "1,2,3", "BINARY", "\x00")
_PNG_CHUNKS = b"tEXt zTXt iTXt iCCP eXIf tRNS PLTE acTL fcTL gAMA".split()
_OPCODES = tuple(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


def mutate(seeds: Sequence[bytes], kind: str, random: Random) -> bytes:
    """Make one hostile file with one to three mutations."""
    data = random.choice(seeds)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if kind in _OF_KIND and random.random() < 0.5:
            try:
                data = random.choice(_OF_KIND[kind])(data, random)
                continue
            except Exception:  # an earlier mutation has broken the format
                pass
        if random.random() < 0.1:
            tail = random.choice(seeds)
            data = data[: _place(data, random)] + tail[_place(tail, random) :]
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
    """Write a number at the limit of its type, as a wrong length or offset."""
    place, number = _place(data, random), random.choice(_NUMBERS)
    size, order = random.choice((1, 2, 4, 8)), random.choice("<>")
    field = struct.pack(f"{order}Q", number)
    piece = field[:size] if order == "<" else field[-size:]
    return data[:place] + piece + data[place + size :]


def _repeat(data: bytes, random: Random) -> bytes:
    first, last = sorted((_place(data, random), _place(data, random)))
    return data[:last] + data[first:last] * random.choice((1, 2, 50)) + data[last:]


def _replace_digit(data: bytes, random: Random) -> bytes:
    place = random.choice([i for i, byte in enumerate(data[:20_000]) if chr(byte).isdigit()] or [0])
    return data[:place] + random.choice(_TEXTS) + data[place + 1 :]


_BLIND: tuple[Mutation, ...] = (
    _flip_bits, _flip_bits, _cut, _insert, _remove, _overwrite, _overwrite, _repeat, _replace_digit,
)  # fmt: skip


def _change_json(data: bytes, random: Random) -> bytes:
    """Replace a value, or drop, rename or add a field, anywhere inside."""
    return _dump(_changed(json.loads(data), random))


def _dump(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _changed(content: Any, random: Random) -> Any:
    keys: list[Any] = []
    if isinstance(content, dict | list):
        keys = [*content] if isinstance(content, dict) else [*range(len(content))]
    if not keys or random.random() < 0.15:
        return random.choice(_VALUES)
    key, action = random.choice(keys), random.random()
    content = content.copy()
    if action < 0.1:
        del content[key]
    elif action < 0.2 and isinstance(content, dict):
        name = random.choice(("", "x", "step", "id", "class", "__metadata__", str(key) + "s"))
        content[name] = content.pop(key)
    elif action < 0.25:
        content = content | {"more": 1} if isinstance(content, dict) else [*content, content[key]]
    else:
        content[key] = _changed(content[key], random)
    return content


def _nest(data: bytes, random: Random) -> bytes:
    """Insert deeply nested brackets in place of a value."""
    depth = random.choice((50, 900, 1_100, 100_000))
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}")))
    places = [i + 1 for i, byte in enumerate(data[:20_000]) if byte == ord(":")] or [0]
    place = random.choice(places)
    return data[:place] + opening * depth + b"1" + closing * depth + b"," + data[place:]


def _repeat_key(data: bytes, random: Random) -> bytes:
    key = json.dumps(random.choice([*json.loads(data)])).encode()
    value = _dump(random.choice(_VALUES)).strip()
    place = data.index(b"{") + 1
    return data[:place] + key + b":" + value + b"," + data[place:]


def _change_line(data: bytes, random: Random) -> bytes:
    lines = data.splitlines() or [b""]
    place = random.randrange(len(lines))
    lines[place] = random.choice(_JSON)(lines[place], random).replace(b"\n", b"")
    return b"\n".join(lines) + b"\n"


def _change_safetensors(data: bytes, random: Random) -> bytes:
    """Change the header, and keep its length right."""
    size = min(int.from_bytes(data[:8], "little"), len(data))
    change = random.choice((_nest, _repeat_key)) if random.random() < 0.3 else _change_json
    header = change(data[8 : 8 + size], random)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _change_tar(data: bytes, random: Random) -> bytes:
    """Change a field of a header, and keep its checksum right."""
    start = 512 * random.randrange(len(data) // 512)
    header = bytearray(data[start : start + 512])
    offset, size = random.choice(_TAR_FIELDS)
    number = random.choice((f"{random.choice(_NUMBERS):o}".encode(), b"-1", b"\x80" + bytes(7) + b"\xff" * 4))
    text = random.choice((number, random.choice(_PIECES), random.randbytes(size)))
    if size == 1:
        text = bytes([random.choice(b"012357xgSLK\0V")])
    header[offset : offset + size] = text[:size].ljust(size, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:start] + bytes(header) + data[start + 512 :]


def _make_tar(data: bytes, random: Random) -> bytes:
    """A new tar file: members of every kind and name, with arbitrary extended headers."""
    buffer = io.BytesIO()
    style = random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=style) as tar:
        for _ in range(random.randint(1, 4)):
            member = tarfile.TarInfo(random.choice(_TAR_NAMES))
            member.type = bytes([random.choice(b"01234567xSLK")]) if random.random() < 0.5 else b"0"
            member.linkname = random.choice(("", "a.png", "/etc/passwd", "../../x"))
            content = random.choice((b"", b"1", b"-1", data[:600], random.randbytes(40)))
            member.size = len(content)
            if style == tarfile.PAX_FORMAT and random.random() < 0.5:
                member.pax_headers = {random.choice(_PAX_KEYS): random.choice(_PAX_VALUES)}
            with suppress(ValueError, OSError):
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _change_zip(data: bytes, random: Random) -> bytes:
    """Change the content of one member, and sometimes its name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        victim = random.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            if name == victim:
                content = random.choice((_change_pickle, *_BLIND))(content, random)
                name = random.choice((name, name, name, "../" + name, name.upper(), "/" + name))
            compression = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            new.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


def _change_pickle(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    codes = b"".join(random.choices(_OPCODES, k=random.randint(1, 4)))
    argument = random.choice((b"", b"os\nsystem\n", b"\xff\xff\xff\x7f", b"\x04\0\0\0", random.randbytes(4)))
    return data[:place] + codes + argument + data[place + random.choice((0, 0, 1, 4)) :]


def _change_png(data: bytes, random: Random) -> bytes:
    """Change or add a chunk, and keep its CRC right."""
    if not data.startswith(b"\x89PNG"):
        raise ValueError("another format")
    chunks, place = [], 8
    while place + 12 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + size]))
        place += 12 + size
    victim = random.randrange(len(chunks))
    kind, content = chunks[victim]
    content = random.choice(_BLIND)(content, random)
    if random.random() < 0.3:
        content = random.choice((b"", b"a\0\0", b"a\0\0" + zlib.compress(bytes(2_000_000)), content))
        chunks.insert(victim, (random.choice(_PNG_CHUNKS), content))
    else:
        chunks[victim] = kind, content
    packed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return data[:8] + b"".join(packed)


def _change_words(data: bytes, random: Random) -> bytes:
    """Remove, insert or replace a word of a command line; zeros separate words."""
    words = data.split(b"\0")
    place, action = random.randrange(len(words)), random.random()
    word = random.choice((*_WORDS, *words))
    words[place : place + (action < 0.2 or action >= 0.5)] = [] if action < 0.2 else [word]
    return b"\0".join(words)


_JSON = (_change_json, _change_json, _change_json, _change_json, _nest, _repeat_key)
_OF_KIND: dict[str, Sequence[Mutation]] = {
    "json": _JSON,
    "lines": (_change_line,),
    "safetensors": (_change_safetensors,),
    "tar": (_change_tar, _change_tar, _make_tar),
    "zip": (_change_zip,),
    "pickle": (_change_pickle,),
    "image": (_change_png,),
    "words": (_change_words,),
}
"""Mutations that know a format, by kind."""
