"""The folders of boards, and their rows as the papers' comparison reads them."""

from bench.boards.tables import OWN, PUBLISHED, boards_folder, own_folder
from bench.boards.wide import wide_texts as boards

__all__ = ["OWN", "PUBLISHED", "boards", "boards_folder", "own_folder"]
