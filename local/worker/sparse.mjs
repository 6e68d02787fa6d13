// Half of a memory image is empty. Without its empty pages it is read, hashed and handed to workerd in half the time.
const PAGE = 4096;

/** Little-endian: length, number of pages kept, their numbers, then their bytes. */
export function pack(bytes) {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >> 2);
  const kept = [];
  for (let page = 0; page * PAGE < bytes.length; page++) {
    const start = (page * PAGE) >> 2;
    if (words.subarray(start, start + PAGE / 4).some((word) => word !== 0)) kept.push(page);
  }
  const head = new Uint32Array([bytes.length, kept.length, ...kept]);
  const packed = new Uint8Array(head.byteLength + kept.length * PAGE);
  packed.set(new Uint8Array(head.buffer));
  kept.forEach((page, i) => {
    packed.set(bytes.subarray(page * PAGE, (page + 1) * PAGE), head.byteLength + i * PAGE);
  });
  return packed;
}

/** @param {ArrayBuffer} packed */
export function unpack(packed) {
  const [length, count] = new Uint32Array(packed, 0, 2);
  const bytes = new Uint8Array(length);
  const start = 8 + count * 4;
  new Uint32Array(packed, 8, count).forEach((page, i) => {
    const end = Math.min(PAGE, length - page * PAGE);
    bytes.set(new Uint8Array(packed, start + i * PAGE, end), page * PAGE);
  });
  return bytes;
}
