"""Images that keep their aspect ratio, as patches in row-major order, padded to one number of patches."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ...data.framing import resample

LONGEST = 1333 / 800  # largest ratio of the longer side to `img_size`, as in ViLT


@dataclass(frozen=True)
class PatchFraming:
    """Resize images to a shorter side of `img_size`, and both sides to whole patches."""

    img_size: int
    patch: int  # side of a patch
    channels: int = 3

    @property
    def most(self) -> int:
        """Largest number of patches of an image."""
        return (self.img_size // self.patch) * (int(self.img_size * LONGEST) // self.patch)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that an image is resized to, as ViLT's image processor does."""
        scale = self.img_size / min(height, width)
        scale = min(scale, int(self.img_size * LONGEST) / max(height, width))
        rows, columns = (max(int(side * scale + 0.5) // self.patch, 1) * self.patch for side in (height, width))
        return rows, columns

    def __call__(self, image: np.ndarray) -> dict[str, Tensor]:
        """Frame an image, H, W, C: `image`, uint8 most, C, P, P, and `grid`, its rows and columns of patches."""
        height, width = self.size(*image.shape[:2])
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        resized = resample(picture, (width, height), (0, 0, *picture.size)).convert(
            "L" if self.channels == 1 else "RGB"
        )
        pixels = torch.from_numpy(np.array(resized)).view(height, width, self.channels).permute(2, 0, 1)
        found = torch.zeros(self.most, self.channels, self.patch, self.patch, dtype=torch.uint8)
        parts = split_patches(pixels[None], self.patch)[0]
        found[: len(parts)] = parts
        return {"image": found, "grid": torch.tensor([height // self.patch, width // self.patch])}


def split_patches(images: Tensor, patch: int) -> Tensor:
    """Split images, B, C, H, W, into patches, B, N, C, P, P."""
    parts = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # B, C, h, P, w, P
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def join_patches(patches: Tensor, rows: int, columns: int) -> Tensor:
    """Join the first rows x columns of patches, B, N, C, P, P, to images, B, C, H, W."""
    parts = patches[:, : rows * columns].unflatten(1, (rows, columns))  # B, h, w, C, P, P
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def embed_patches(embeddings: Any, patches: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Return ViLT's embeddings of normalised images and their mask, B, 1 + N, C and B, 1 + N.

    Args:
        embeddings: ViLT's embedding module.
        patches: B, N, C, P, P.
        grid: rows and columns of patches of each image, B, 2.
    """
    count = patches.shape[1]
    content = embeddings.patch_embeddings(patches.flatten(0, 1)).flatten(1).unflatten(0, (-1, count))  # B, N, C
    rows, columns = grid[:, :1], grid[:, 1:]
    number = torch.arange(count, device=patches.device)[None]
    inside = number < rows * columns
    place: Tensor = embeddings.position_embeddings
    side = embeddings.config.image_size // embeddings.config.patch_size
    # ViLT stretches its grid of positions to the image's, corner to corner.
    down = (number // columns) * 2 / (rows - 1).clamp(min=1) - 1
    across = (number % columns) * 2 / (columns - 1).clamp(min=1) - 1
    at = torch.stack([across, down], dim=2).to(place.dtype).flatten(0, 1)[None, :, None]  # 1, B * N, 1, 2
    stretched = F.grid_sample(place[:, 1:].mT.unflatten(2, (side, side)), at, align_corners=True)
    stretched = stretched[0, :, :, 0].mT.unflatten(0, (-1, count))  # B, N, C
    first = (embeddings.cls_token + place[:, :1]).expand(patches.shape[0], -1, -1)
    whole = embeddings.dropout(torch.cat([first, content + stretched], dim=1))
    return whole, torch.cat([torch.ones_like(inside[:, :1]), inside], dim=1).long()
