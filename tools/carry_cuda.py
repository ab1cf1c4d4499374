"""Shrinks CUDA libraries to carry them to a machine without a network, and restores them there.

    carry_cuda.py slim FOLDER       keeps the parts of its libraries that a GPU of sm_90 needs
    carry_cuda.py restore FOLDER    after unpacking with xz on the other machine

A library holds its kernels once for each generation of GPUs, most of them compressed by LZ4, so
that xz saves little. `slim` zeroes the parts for other generations, including PTX. It decompresses
the remaining kernels and moves them to a file next to the library, LIBRARY.kernels; `restore`
compresses them into their old places. cuBLAS 12.9 has other kernels compressed by Zstandard: those
stay unchanged, or become zeros. Needs the package lz4, and `slim` also zstandard.
"""

import concurrent.futures
import pathlib
import struct
import sys

import lz4.block

ARCHITECTURE = 90
ELF = 2  # the kind of an entry with compiled kernels; others are PTX and the like
LZ4 = 0x2000  # among an entry's flags
FRAME = 8 << 20  # more than any Zstandard frame takes
HEADER = 18  # the maximum size of a frame's header, which stays
MACHINE = 190  # ELF's number for CUDA
LEVELS = (4, 9, 12)  # the first level nearly always compresses at least as much as NVIDIA's


class Entry:
    """A fat binary's entry in `data`: a header at `at`, and `size` bytes at `begin`.

    `packed` of these are used; 0 if the kernels are in the file next to the library.
    """

    def __init__(self, data, at):
        self.kind, _, header, self.size, self.packed = struct.unpack_from("<HHIQI", data, at)
        (self.architecture,) = struct.unpack_from("<I", data, at + 28)
        self.flags, _, self.unpacked = struct.unpack_from("<QQQ", data, at + 40)
        self.at, self.begin = at, at + header
        self.valid = 64 <= header <= 4096

    @property
    def end(self):
        return self.begin + self.size

    @property
    def wanted(self):
        return (self.kind, self.architecture) == (ELF, ARCHITECTURE)

    @property
    def compressed(self):
        return bool(self.flags & LZ4)

    def fill(self, data, content):
        """Replaces the content; an empty content leaves zeros."""
        struct.pack_into("<I", data, self.at + 16, len(content))
        data[self.begin : self.end] = content.ljust(self.size, b"\0")


def entries(data):
    at = 0
    while (at := data.find(b"\x50\xed\x55\xba", at)) >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        if (version, header) != (1, 16) or end > len(data):
            at += 4  # not a fat binary
            continue
        at += header
        while at + 64 <= end:
            entry = Entry(data, at)
            if not entry.valid or entry.end > end:
                raise ValueError(f"an entry of unknown form at {at}")
            yield entry
            at = entry.end
        at = end


def frames(data):
    """Yields begin, end and first bytes of all Zstandard frames outside of fat binaries."""
    import zstandard

    at = 0
    while (at := data.find(b"\x28\xb5\x2f\xfd", at)) >= 0:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        rest = bytes(data[at : at + FRAME])
        try:
            content = decompressor.decompress(rest)
        except zstandard.ZstdError:  # these bytes may be anything
            content = b""
        if decompressor.eof:
            end = at + len(rest) - len(decompressor.unused_data)
            yield at, end, content[:64]
            at = end
        else:
            at += 4


def is_for_others(header):
    """Returns whether an ELF file has kernels for another generation. Its flags have the generation
    in their first or, in newer files, second byte."""
    kernels = header[:4] == b"\x7fELF" and struct.unpack_from("<H", header, 18) == (MACHINE,)
    return kernels and ARCHITECTURE not in header[48:50]


def compress(kernels, size):
    """Returns an LZ4 block of at most `size` bytes, or None."""
    for level in LEVELS:
        packed = lz4.block.compress(
            kernels, mode="high_compression", compression=level, store_size=False
        )
        if len(packed) <= size:
            return packed


def slim(library):
    data, kernels, kept = bytearray(library.read_bytes()), bytearray(), 0
    found = list(entries(data))
    if not found:  # this program may have loaded it
        return
    for entry in found:
        if not entry.wanted:
            data[entry.begin : entry.end] = bytes(entry.size)
            continue
        kept += 1
        if entry.compressed:
            packed = bytes(data[entry.begin : entry.begin + entry.packed])
            unpacked = lz4.block.decompress(packed, uncompressed_size=entry.unpacked)
            if compress(unpacked, entry.size):
                kernels += unpacked
                entry.fill(data, b"")
    for begin, end, content in frames(data):
        if is_for_others(content):
            data[begin + HEADER : end] = bytes(end - begin - HEADER)
    library.write_bytes(data)
    if kernels:
        library.with_name(library.name + ".kernels").write_bytes(kernels)
    print(f"{library.name}: {kept} entries kept, {len(kernels) / 1e6:.0f} MB of kernels")


def restore(library):
    beside = library.with_name(library.name + ".kernels")
    data, kernels, at = bytearray(library.read_bytes()), memoryview(beside.read_bytes()), 0
    taken = []
    for entry in entries(data):
        if entry.wanted and entry.compressed and not entry.packed:
            taken.append((entry, kernels[at : at + entry.unpacked]))
            at += entry.unpacked
    if at != len(kernels):
        raise ValueError(f"{beside} has {len(kernels)} bytes, the library takes {at}")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        packed = pool.map(lambda pair: compress(pair[1], pair[0].size), taken)
        for (entry, _), content in zip(taken, packed, strict=True):
            entry.fill(data, content)
    library.write_bytes(data)
    beside.unlink()


def main():
    action, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if action == "restore":
        for kernels in sorted(folder.rglob("*.kernels")):
            restore(kernels.with_suffix(""))
    else:
        for library in sorted(folder.rglob("*.so*")):
            slim(library)


if __name__ == "__main__":
    main()
