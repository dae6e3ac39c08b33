"""Makes a copy of a GGUF model of the llama family whose first and last layer add constants to a few key channels.

The biases of the Qwen2 family do that to caches: an offset of many times a key's own spread in a few channels. They are put
where RoPE turns slowest, so that after RoPE they are still nearly constant over a few thousand tokens: a constant that all keys
of a head share adds the same q . b to all scores of a query, and softmax does not see it. The model stays nearly the same, its
keys do not.
"""

import pathlib
import shutil
import struct

FACTOR = 30  # offset over the typical magnitude of a key's entry
PAIRS = 3  # of the slowest channel pairs of each head, one channel of each gets an offset, signs alternating

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
BLOCK_BYTES = {Q4_0: 18, Q4_1: 20, Q8_0: 34}


class Malformed(Exception):
    pass


class Reader:
    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def number(self, code):
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at])

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            of, count = self.number("I"), self.number("Q")
            return [self.value(of) for _ in range(count)]
        if kind not in SCALARS:
            raise Malformed(f"metadata of type {kind}")
        return self.number(SCALARS[kind])


class Gguf:
    """The header of a GGUF file: metadata as raw bytes and as values, tensors as (name, dims, type, offset)."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        reader = Reader(data)
        if data[:4] != b"GGUF":
            raise Malformed(f"{path} is no GGUF file")
        reader.at = 4
        self.version = reader.number("I")
        tensors, entries = reader.number("Q"), reader.number("Q")
        self.entries = []  # (key, raw bytes of type and value, value)
        for _ in range(entries):
            key = reader.text()
            begin = reader.at
            value = reader.value(reader.number("I"))
            self.entries.append((key, data[begin:reader.at], value))
        self.meta = {key.decode(): value for key, _, value in self.entries}
        self.tensors = []
        for _ in range(tensors):
            name = reader.text()
            dims = [reader.number("Q") for _ in range(reader.number("I"))]
            self.tensors.append((name.decode(), dims, reader.number("I"), reader.number("Q")))
        self.alignment = self.meta.get("general.alignment", 32)
        self.data_at = -(-reader.at // self.alignment) * self.alignment
        self.data = data

    def rows(self, name):
        """A matrix as rows of floats."""
        for found, dims, kind, offset in self.tensors:
            if found == name:
                width, count = dims[0], dims[1] if len(dims) > 1 else 1
                return [self.row(kind, self.data_at + offset, width, r) for r in range(count)]
        raise Malformed(f"the model has no {name}")

    def row(self, kind, begin, width, index):
        if kind in (F32, F16):
            code, size = ("f", 4) if kind == F32 else ("e", 2)
            return list(struct.unpack_from(f"<{width}{code}", self.data, begin + index * width * size))
        if kind not in BLOCK_BYTES:
            raise Malformed(f"weights of type {kind}; expected F32, F16, Q4_0, Q4_1 or Q8_0")
        row = []
        for block in range(width // 32):
            at = begin + (index * (width // 32) + block) * BLOCK_BYTES[kind]
            (scale,) = struct.unpack_from("<e", self.data, at)
            if kind == Q8_0:
                row += [scale * q for q in struct.unpack_from("<32b", self.data, at + 2)]
                continue
            zero = struct.unpack_from("<e", self.data, at + 2)[0] if kind == Q4_1 else -8 * scale
            codes = self.data[at + (4 if kind == Q4_1 else 2):][:16]
            row += [zero + scale * (c & 15) for c in codes] + [zero + scale * (c >> 4) for c in codes]
        return row


def typical_key(model, layer):
    """Root mean square of a key's entries for normalized inputs with independent channels, from the weights."""
    (gain,) = model.rows(f"blk.{layer}.attn_norm.weight")
    rows = model.rows(f"blk.{layer}.attn_k.weight")
    return (sum((w * g) ** 2 for row in rows for w, g in zip(row, gain)) / len(rows)) ** 0.5


def offsets(head_dim, heads, magnitude):
    """Biases of one layer, layout (heads, head_dim). Pairs of neighbouring channels turn together, the last ones slowest."""
    head = [0.0] * head_dim
    for pair in range(PAIRS):
        head[head_dim - 2 - 2 * pair] = magnitude * (-1) ** pair
    return head * heads


def make(source, target, factor=FACTOR):
    """Writes `target`; returns {layer: offset}."""
    model = Gguf(source)
    if model.meta.get("general.architecture") != b"llama":
        raise Malformed(f"{source}: architecture {model.meta.get('general.architecture')}, expected llama")
    heads = model.meta["llama.attention.head_count_kv"]
    head_dim = model.meta.get("llama.attention.key_length",
                              model.meta["llama.embedding_length"] // model.meta["llama.attention.head_count"])
    magnitudes = {layer: factor * typical_key(model, layer) for layer in (0, model.meta["llama.block_count"] - 1)}
    size = len(model.data) - model.data_at
    padded = -(-size // model.alignment) * model.alignment
    new, payload = [], b""
    for layer, magnitude in magnitudes.items():
        values = offsets(head_dim, heads, magnitude)
        new.append((f"blk.{layer}.attn_k.bias", [len(values)], F32, padded + len(payload)))
        payload += struct.pack(f"<{len(values)}f", *values)
        payload += bytes(-len(payload) % model.alignment)
    header = b"GGUF" + struct.pack("<IQQ", model.version, len(model.tensors) + len(new), len(model.entries))
    for key, raw, value in model.entries:
        if key == b"general.name":
            name = value + b" with key biases"
            raw = struct.pack("<IQ", STRING, len(name)) + name
        header += struct.pack("<Q", len(key)) + key + raw
    for name, dims, kind, offset in model.tensors + new:
        text = name.encode()
        header += struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    header += bytes(-len(header) % model.alignment)
    part = pathlib.Path(f"{target}.part")
    with open(part, "wb") as out:
        out.write(header)
        out.write(memoryview(model.data)[model.data_at:])
        out.write(bytes(padded - size))
        out.write(payload)
    shutil.move(part, target)
    return magnitudes
