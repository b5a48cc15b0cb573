"""One block's content on the wire: 16 bytes prefix digest, 4 bytes a token, and filler up to the wanted size.

The filler stands for the KV itself; its size is the modelled bytes of the block times ``kv_bytes_scale``. The receiver
needs ``Block.tokens`` to know where the filler begins. ``Block.digest`` is the digest behind the block: the receiver
compares it with what it computes from the payload, so a block is checked twice, by content and by checksum.
"""

from disagg_contract.hashing import DIGEST_BYTES
from disagg_contract.transfer import Block
from disagg_workers.contents import BlockContent
from disagg_workers.errors import PullError


def seal(*, index: int, content: BlockContent, wire_bytes: int) -> Block:
    """The frame of a block; ``wire_bytes`` is the wanted size of its payload (more if the content needs it)."""
    data = content.prefix + content.packed
    filler = b"\0" * max(0, wire_bytes - len(data))
    return Block.seal(index=index, tokens=content.tokens, digest=content.digest(), payload=data + filler)


def unseal(block: Block, *, index: int, block_tokens: int) -> BlockContent:
    """The content of a received block. Raises PullError if it is damaged, out of order, or of another geometry."""
    if block.index != index:
        raise PullError(f"block {block.index} came where block {index} was due")
    if not block.intact:
        raise PullError(f"block {index} is damaged: its checksum does not match")
    needed = DIGEST_BYTES + 4 * block.tokens
    if not 0 < block.tokens <= block_tokens or len(block.payload) < needed:
        raise PullError(
            f"block {index} holds {block.tokens} tokens in {len(block.payload)} bytes; blocks have {block_tokens}"
        )
    content = BlockContent(block.payload[:DIGEST_BYTES], block.payload[DIGEST_BYTES:needed])
    if content.digest() != block.digest:
        raise PullError(f"block {index} is damaged: its content does not match its digest")
    return content
