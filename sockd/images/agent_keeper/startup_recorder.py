"""Makes the profile of a start, from what the agent has recorded of it and the chunks that the agent has.

The agent hands over ciphertext of chunks. It is verified here, by the names that the manifest has: other workers answer reads
from the startup data, and an agent that was taken over cannot put other bytes into it. Blocks that the start has read from the
startup data of another build, and whose chunks the agent does not have, are taken from there. Blocking work is done in threads,
one chunk at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sockd.base.blocking import in_thread
from sockd.images.agent import agent_wire as wire
from sockd.images.agent_keeper.agent_keeper import AgentKeeper
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk, decrypt, verify
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import Profile
from sockd.images.profiles.startup_data import BITMAP_BYTES, StartupData, StartupDataWriter
from sockd.linux.memory_file import writable_file


async def used_chunks(keeper: AgentKeeper, image: str) -> Sequence[int]:
    """What reads of an image have used, in its order, as the agent says. Raises: ImageUnavailable."""
    answer = await keeper.ask(lambda number: wire.AskProfile(number, image))
    assert isinstance(answer, wire.ProfileIs)
    return answer.order


async def recorded(
    keeper: AgentKeeper, manifest: Manifest, most_bytes: int, startup: StartupData | None = None
) -> Profile:
    """What reads of an image have used, in its order. Chunks that are in no cache any more, and those for which `most_bytes` of
    startup data have no room, are in the order only.

    Args: startup: what the start has read from, which the daemon has filled.
    Raises: ImageUnavailable; Tampered."""
    order = tuple(chunk for chunk in await used_chunks(keeper, manifest.image) if chunk < len(manifest.chunks))
    if most_bytes == 0:
        return Profile(order)
    writer = StartupDataWriter(most_bytes)
    file = writable_file("chunk", CHUNK_BYTES)
    try:
        for index in order:
            chunk = manifest.chunks[index]
            if chunk is None:
                continue
            use = await keeper.ask(
                lambda number, index=index: wire.AskUse(number, manifest.image, index),  # type: ignore[misc]
                lambda: (file,),
            )
            assert isinstance(use, wire.UseIs)
            if len(use.blocks) != BITMAP_BYTES:
                continue
            blocks = int.from_bytes(use.blocks, "big")
            if use.has_chunk:
                has_room = await in_thread(_add, writer, index, blocks, file, chunk, manifest.chunk_size(index))
            elif startup is not None and (piece := startup.piece(index, blocks)) is not None:
                has_room = writer.add_piece(index, blocks, piece)
            else:
                continue
            if not has_room:
                break
    finally:
        os.close(file)
    return Profile(order, await in_thread(writer.data))


def _add(writer: StartupDataWriter, index: int, blocks: int, file: int, chunk: Chunk, size: int) -> bool:
    ciphertext = os.pread(file, size, 0)
    verify(chunk.name, ciphertext)
    return writer.add(index, blocks, decrypt(ciphertext, chunk.key))
