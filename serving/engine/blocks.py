"""The paged cache's book-keeping: which blocks are free, and who grows into them."""

from __future__ import annotations


class BlockManager:
    """Hands out cache blocks of `block_size` tokens and takes them back; it never touches the cache itself."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: blocks used before are in memory already, and one never used costs none.
        self._free = list(range(num_blocks))[::-1]

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill."""
        return -(-tokens // self.block_size)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Extend `table` to hold `tokens` tokens; all or nothing, False when too few blocks are free."""
        missing = self.needed(tokens) - len(table)
        if missing > len(self._free):
            return False
        table.extend(self._free.pop() for _ in range(missing))
        return True

    def release(self, table: list[int]) -> None:
        """Give every block of `table` back and empty it."""
        self._free.extend(reversed(table))
        table.clear()
