#!/usr/bin/env python3
"""Writes golden.vecinfer.gguf: the sidecar format spelled out a second time, independently of the library.

The tests read the committed file and check that the library parses it and writes exactly these bytes. Run it only when the
format changes on purpose.
"""

import pathlib
import struct

ALIGNMENT = 32
U32, STRING, ARRAY, U64, I64 = 4, 8, 9, 10, 11
F32_TENSOR, I8_TENSOR = 0, 24


def fnv1a(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def padded(raw):
    return raw + bytes(-len(raw) % ALIGNMENT)


def centroid(layer, side, index, channel):
    return (layer * 31 + side * 17 + index * 7 + channel * 5) % 255 - 127


def main():
    head_dim, heads, layers = 8, 2, (0, 2)
    values = []
    tensors = []
    data = b""

    def add(key, kind, payload):
        values.append(text(key) + struct.pack("<I", kind) + payload)

    def add_tensor(name, shape, kind, raw):
        nonlocal data
        tensors.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data)))
        data += padded(raw)

    for layer in layers:
        factors = [0.25 * (i + 1) + layer for i in range(heads * head_dim)]
        add_tensor(f"blk.{layer}.k.smooth", (head_dim, heads), F32_TENSOR, struct.pack(f"<{len(factors)}f", *factors))
        for side, name, sub_dim in ((0, "k", 2), (1, "v", 4)):
            codes = [centroid(layer, side, i, j) for i in range(256) for j in range(sub_dim)]
            add_tensor(f"blk.{layer}.{name}.scale", (1,), F32_TENSOR, struct.pack("<f", 0.5 + layer + side))
            add_tensor(f"blk.{layer}.{name}.centroids", (sub_dim, 256, 1), I8_TENSOR, struct.pack(f"<{len(codes)}b", *codes))

    def array(kind, code, items):
        return struct.pack(f"<IQ{len(items)}{code}", kind, len(items), *items)

    add("general.architecture", STRING, text("vecinfer"))
    add("general.alignment", U32, struct.pack("<I", ALIGNMENT))
    add("vecinfer.version", U32, struct.pack("<I", 1))
    add("vecinfer.scheme", STRING, text("vecinfer:k=d2b8,v=d4b8,kt=smooth+hadamard,vt=none,norm=vector,scope=layer,"
                                        "recent=128,sink=4,prefill=windowed,encode=nearest"))
    add("vecinfer.model.architecture", STRING, text("llama"))
    add("vecinfer.model.name", STRING, text("Golden"))
    add("vecinfer.model.rope", STRING, text("norm"))
    add("vecinfer.model.layer_hashes", ARRAY, array(U64, "Q", (1, 2**63 + 5, 0)))
    add("vecinfer.calibration.text_hash", U64, struct.pack("<Q", 2**64 - 1))
    add("vecinfer.calibration.tokens", I64, struct.pack("<q", 131072))
    add("vecinfer.calibration.seed", U64, struct.pack("<Q", 42))
    add("vecinfer.calibration.tool", STRING, text("vecinfer 0.1.0"))
    add("vecinfer.layers.index", ARRAY, array(U32, "I", layers))
    add("vecinfer.layers.num_kv_heads", ARRAY, array(U32, "I", (heads,) * 2))
    add("vecinfer.layers.head_dim_k", ARRAY, array(U32, "I", (head_dim,) * 2))
    add("vecinfer.layers.head_dim_v", ARRAY, array(U32, "I", (head_dim,) * 2))
    add("vecinfer.file_hash", U64, bytes(8))

    values = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    file = padded(values + b"".join(tensors)) + data
    file = file[:len(values) - 8] + struct.pack("<Q", fnv1a(file)) + file[len(values):]
    pathlib.Path(__file__).with_name("golden.vecinfer.gguf").write_bytes(file)


if __name__ == "__main__":
    main()
