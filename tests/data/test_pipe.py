"""The output of a command is a whole shard, or an error that says why not."""

import os
import tarfile

import pytest
from shard_files import picture, write_shard, write_tar

from lgq.data import stream as pipe
from lgq.data.images import DataError, EncodedImage
from lgq.data.shards import ShardDataset
from lgq.data.stream import piped_images


def failure(command, shard="a.tar"):
    with pytest.raises(DataError) as caught:
        list(piped_images(command, shard))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_command_gives_what_the_file_gives(tmp_path, style):
    long = f"{'d' * 90}/{'e' * 90}"
    members = [("a.cls", b" 3\n"), ("a.PNG", picture(1)), ("a.json", b"{}"), ("a.seg.png", b"a mask")]
    members += [(f"{long}.jpg", picture(2, "JPEG")), ("/x/../b.webp", picture(3, "WEBP")), ("b/c.cls", b"7")]
    path = write_tar(tmp_path / "a.tar", members, format=style)
    images = list(piped_images(f"cat {path}", "a.tar"))
    assert images == list(ShardDataset([path]))
    assert [image.label for image in images] == [3, None, None]


def test_links_are_not_followed_and_other_members_are_passed_over(tmp_path):
    link = tarfile.TarInfo("a.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = write_tar(tmp_path / "a.tar", [link, ("b.txt", b"text"), ("c.png", b"")])
    assert list(piped_images(f"cat {path}", "a.tar")) == [EncodedImage(b"", None, "a.tar/c.png")]


def test_an_exit_status_other_than_0_is_named_with_the_shard(tmp_path):
    path = write_shard(tmp_path / "a.tar", 0, 3)
    assert "a.tar cannot be read: `cat" in failure(f"cat {path}; exit 22")
    assert "exit status 22" in failure(f"cat {path}; exit 22")
    assert "exit status 127" in failure("no-such-command-at-all 2>/dev/null")
    assert "exit status 1 " in failure("cat no-such.tar 2>/dev/null")
    assert "killed by signal 9" in failure(f"cat {path}; kill -9 $$")
    assert "exit status 3 and wrote no whole" in failure(f"head -c 1000 {path}; exit 3")


def test_a_shard_cut_anywhere_is_no_shorter_shard(tmp_path):
    path = write_shard(tmp_path / "a.tar", 0, 2)
    content = path.read_bytes().rstrip(b"\0")
    end = -(-len(content) // 512) * 512
    for length in [*range(0, end + 1, 512), end + 511, 100, 700]:
        assert "exit status 0 and wrote no whole" in failure(f"head -c {length} {path}"), length


@pytest.mark.parametrize("place", [0, 1024, 2048, 3072])
def test_a_damaged_header_is_no_end(tmp_path, place):
    path = write_shard(tmp_path / "a.tar", 0, 2)
    whole = path.read_bytes()
    assert whole[place : place + 3] == b"000", "no header begins here"
    path.write_bytes(whole[:place] + b"\xff" * 10 + whole[place + 10 :])
    assert "no whole, uncompressed tar file" in failure(f"cat {path}")


def test_compressed_shards_and_other_files_are_refused(tmp_path):
    path = write_shard(tmp_path / "a.tar", 0, 2)
    assert "uncompressed" in failure(f"gzip -c {path}")
    assert "uncompressed" in failure("echo not images")
    assert "more follows after its end" in failure(f"cat {path} {path}")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["a.png", "b.png", "a.cls"], "a.tar/a.cls: in a stream the members of one key"),
        (["a.png", "a.cls"], "a.tar/a.cls: a label is a number"),
        (["a.json"], "holds no image; members must be named"),
    ],
)
def test_members_that_make_no_shard_are_named(tmp_path, members, message):
    path = write_tar(tmp_path / "a.tar", [(name, b"no number") for name in members])
    assert message in failure(f"cat {path}")


def test_a_member_that_claims_more_than_memory_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pipe, "_LARGEST_MEMBER", 10)
    path = write_shard(tmp_path / "a.tar", 0, 1)
    assert "claims" in failure(f"cat {path}")


def test_a_reader_that_is_left_leaves_no_process(tmp_path):
    path = write_shard(tmp_path / "a.tar", 0, 200)
    images = piped_images(f"echo $$ > {tmp_path}/pid; cat {path}; sleep 1000", "a.tar")
    assert next(images).label == 0
    images.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
