// Run once per version of Python, the SDK and this folder: takes the memory image that later starts load.
import { bootPython, memoryImage } from "./boot.mjs";
import { pack } from "./sparse.mjs";

const image = pack(memoryImage(await bootPython({ makeSnapshot: true })));

export default { fetch: () => new Response(image) };
