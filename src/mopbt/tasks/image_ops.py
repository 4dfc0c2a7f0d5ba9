"""Operations on whole batches of images, each image with a strength of its own: those of Pillow, on images of 256 levels."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

# How the colors of an image change.


def auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the whole range of levels."""
    lowest, highest = (
        found[..., None].double() for found in torch.aminmax(images.flatten(2), dim=2)
    )
    scale = torch.full_like(lowest, 255) / (highest - lowest).clamp(
        min=1
    )  # a number over a tensor would be rounded twice
    levels = torch.arange(256, device=images.device)
    return _looked_up(
        images,
        torch.where(highest > lowest, (levels * scale - lowest * scale).clamp(0, 255), levels),
    )


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return _blended(images.new_zeros(()), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image in gray."""
    return _blended(_gray(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean gray."""
    gray = _gray(images)
    pixels = gray.shape[-2] * gray.shape[-1]
    mean = (2 * gray.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)  # rounded
    return _blended(mean, images, factor)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Spread the levels of each channel so that all are about equally frequent."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    spread = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return _looked_up(
        images, torch.where(step > 0, spread, torch.arange(256, device=images.device))
    )


def invert(images: Tensor, _: Tensor) -> Tensor:
    """Turn each level into its opposite."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each level."""
    mask = 256 - 2 ** (8 - bits)
    return images & _each(mask.to(torch.uint8))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed."""
    return _blended(_smoothed(images), images, factor)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels from a threshold on."""
    inverted = images >= _each(threshold.to(torch.int16))
    return images ^ (inverted.to(torch.uint8) * 255)


def _looked_up(images: Tensor, levels: Tensor) -> Tensor:
    """Replace each level by what a table (B, 3, 256) says of it; what follows the point is cut off."""
    return levels.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


def _blended(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Go from a base towards the images, or with a factor above 1 beyond them; levels are cut off, not rounded."""
    blend = (images - base.to(torch.int16)) * _each(factor.float()) + base
    return blend.clamp_(0, 255).to(torch.uint8)


def _gray(images: Tensor) -> Tensor:
    """Return the luma (B, 1, H, W) of ITU-R 601, in whole numbers."""
    red, green, blue = images.int().chunk(3, 1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _smoothed(images: Tensor) -> Tensor:
    """Return the means over neighbors, in which a pixel itself counts five times; the border stays as it is."""
    levels = images.to(torch.int16)
    rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[:, :, 1:-1, 1:-1]
    levels[:, :, 1:-1, 1:-1] = total.float().div_(13).add_(0.5).to(torch.int16)
    return levels


# How the pixels of an image move: by an affine map (B, 2, 3) of the places x and y of a pixel to those that it is taken from.
# Places that come from outside the image are black.


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Turn around the center, counter-clockwise."""
    angle = -torch.deg2rad(degrees)
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    maps = torch.stack([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], dim=1)
    return maps.view(-1, 2, 3)


def shear_x(share: Tensor, height: int, width: int) -> Tensor:
    """Move rows to the left, by a share of their distance from the top."""
    return _staying_but(share, 0, 1)


def shear_y(share: Tensor, height: int, width: int) -> Tensor:
    """Move columns upwards, by a share of their distance from the left."""
    return _staying_but(share, 1, 0)


def translation_x(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move to the left."""
    return _staying_but(pixels, 0, 2)


def translation_y(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move upwards."""
    return _staying_but(pixels, 1, 2)


def _staying_but(numbers: Tensor, row: int, column: int) -> Tensor:
    maps = torch.eye(2, 3, dtype=numbers.dtype, device=numbers.device).repeat(len(numbers), 1, 1)
    maps[:, row, column] = numbers
    return maps


def moved(images: Tensor, maps: Tensor) -> Tensor:
    """Take each pixel from where a map (B, 2, 3) of its center lies, in Pillow's arithmetic of 16 binary places."""
    maps = torch.cat(
        [maps[..., :2], maps[..., 2:] + 0.5 * maps[..., :2].sum(2, keepdim=True)], dim=2
    )
    by_x, by_y, start = (maps * 65536 + 0.5).floor().int()[..., None, None].unbind(2)
    x = torch.arange(images.shape[-1], device=images.device, dtype=torch.int32)
    y = torch.arange(images.shape[-2], device=images.device, dtype=torch.int32)[:, None]
    columns, rows = (by_x * x + by_y * y + start >> 16).unbind(1)
    return _taken(images, rows, columns)


def crop_and_flip(images: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Move images by shifts (B, 2), down and right, of whole pixels; then mirror those that `flips` (B,) names."""
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device) - shifts[:, :1]
    x = torch.arange(width, device=images.device)
    x = torch.where(flips[:, None], width - 1 - x, x) - shifts[:, 1:]
    return _taken(images, y[:, :, None], x[:, None, :])


def cut_out(images: Tensor, centers: Tensor, sides: Tensor) -> Tensor:
    """Put 0 into squares of even sides (B,) around centers (B, 2), y and x; what lies outside an image is left out."""
    within = []
    for axis, size in enumerate(images.shape[-2:]):
        distance = torch.arange(size, device=images.device) - centers[:, axis, None]
        within.append((distance >= -(sides[:, None] // 2)) & (distance < sides[:, None] // 2))
    hole = within[0][:, None, :, None] & within[1][:, None, None, :]
    return images * ~hole


def _taken(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Take pixels from places whose coordinates broadcast to (B, H, W)."""
    height, width = images.shape[-2:]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    places = (y * width + x).clamp_(0, height * width - 1).long()
    taken = images.flatten(2).gather(
        2, places.view(len(images), 1, -1).expand(-1, images.shape[1], -1)
    )
    return (
        taken.view_as(images) * inside[:, None]
    )  # and no torch.where, which takes ten times as long


def _each(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


COLORS: Mapping[
    str, Callable[[Tensor, Tensor], Tensor]
] = {  # of images (B, 3, H, W), uint8, and strengths (B,): images
    "auto_contrast": auto_contrast,
    "brightness": brightness,
    "color": color,
    "contrast": contrast,
    "equalize": equalize,
    "invert": invert,
    "posterize": posterize,
    "sharpness": sharpness,
    "solarize": solarize,
}
MOVES: Mapping[
    str, Callable[[Tensor, int, int], Tensor]
] = {  # of strengths (B,), height and width: maps (B, 2, 3)
    "rotate": rotation,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translation_x,
    "translate_y": translation_y,
}
OPERATIONS = (*COLORS, *MOVES)


def operated(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Apply an operation with its strength to each of the images (B, 3, H, W).

    Operations (B,) are places in `OPERATIONS`, and -1 is none; each is computed for its own images alone.
    """
    ends = torch.bincount(operations + 1, minlength=len(OPERATIONS) + 1).cumsum(0).tolist()
    if ends[0] == len(images):
        return images
    order = operations.argsort()
    images, strengths = images.index_select(0, order), strengths[order]
    parts = [(images[begin:end], strengths[begin:end]) for begin, end in pairwise(ends)]
    done = [
        images[: ends[0]],
        *(
            operation(*part)
            for operation, part in zip(COLORS.values(), parts, strict=False)
            if len(part[0])
        ),
    ]
    if len(
        to_move := images[ends[len(COLORS)] :]
    ):  # all by one map each: the time goes into the number of calls
        own = (strength for _, strength in parts[len(COLORS) :])
        maps = [
            move(strength, *images.shape[-2:])
            for move, strength in zip(MOVES.values(), own, strict=True)
        ]
        done.append(moved(to_move, torch.cat(maps)))
    return torch.cat(done).index_select(0, order.argsort())
