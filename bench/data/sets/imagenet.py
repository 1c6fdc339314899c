"""ImageNet (ILSVRC 2012), 224x224 colour, 1,281,167 + 50,000 images, 1,000 classes

Photographs of a thousand kinds of things (Deng et al., CVPR 2009; Russakovsky et al., IJCV 2015). The validation part,
whose labels are public, is the test set. Fewer images than were published are called `imagenet-subset`. Checked: the
same classes in both parts, at least two, each with training images.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench.data.dataset import DatasetFacts, Decoding, FileDataset, Listing, Request, not_found
from bench.data.folder import list_part, scan
from bench.errors import BadData


class ImageNet(FileDataset):
    """Photographs of a thousand kinds of things (Deng et al., 2009), with the validation part as the test set."""

    facts = DatasetFacts(
        shape=(3, 224, 224),
        is_public=True,
        counts=(1_281_167, 50_000),
        layout="imagenet/{train,val}/WNID/*, as torchvision unpacks it",
        licence="non-commercial research and education, on registration",
        candidates=300,
    )
    versions = ("subset",)

    def missing(self, root: Path) -> list[Path]:
        """Return the missing folders."""
        return [path for part in ("train", "val") if not os.path.isdir(path := root / "imagenet" / part)]

    def listing(self, request: Request) -> Listing:
        """List both trees; named "-subset" if there are fewer images than were published."""
        tree = request.root / "imagenet"
        if self.missing(request.root):
            raise not_found("imagenet", "train/WNID/* and val/WNID/*", tree, "register, fetch and unpack it there")
        train, val = scan(tree / "train", "imagenet"), scan(tree / "val", "imagenet")
        if sorted(train) != sorted(val) or len(train) < 2 or not all(train.values()):
            raise BadData(
                f"data set 'imagenet': {tree / 'train'} has {len(train)} classes and {tree / 'val'} {len(val)}; "
                "expected the same ones, 2 or more, with training images in each"
            )
        names = tuple(train)
        parts = list_part(train, names), list_part(val, names)
        is_whole = (len(parts[0].files), len(parts[1].files)) == self.facts.counts
        return Listing("imagenet" if is_whole else "imagenet-subset", tree, names, *parts, Decoding(224))
