"""Helpers that several files of the tests of data use."""

from PIL import Image

from saccade.settings import DataConfig
from saccade.tasks.opening import open_samples

from .masks import make_pair, save_mask

ROTATED = 6  # EXIF: the stored image is turned by 90 degrees to be shown


def opened(root, task="segment"):
    return open_samples(task, DataConfig(path=str(root)))[1]


def mask_of(source, index=0):
    return source.targets.read(index)["mask"]


def make_odd_set(root, sizes):
    """Write images of odd sizes, one of them turned by EXIF, with thin lines and ignored pixels in their masks."""
    for part, count in (("train", 6), ("val", 4)):
        (root / "images" / part).mkdir(parents=True)
        for number in range(count):
            pixels, mask = make_pair(number + 10 * (part == "val"), sizes[number % 4])
            mask[:, 4::9] = 2  # lines of a pixel
            mask[-7:, :20] = 255
            image, exif = Image.fromarray(pixels), Image.Exif()
            if number == 1:
                image, exif[0x0112] = image.transpose(Image.Transpose.ROTATE_90), ROTATED
            image.save(root / "images" / part / f"{number}.jpg", quality=95, exif=exif)
            save_mask(root / "masks" / part / f"{number}.png", mask)
    return root
