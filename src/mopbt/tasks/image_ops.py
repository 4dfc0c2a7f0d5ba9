"""Apply Pillow's operations to batches of 8-bit images with separate strengths."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
from torch import Tensor

# Operations that change colors.


def auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to the full range of levels."""
    lowest, highest = (
        found[..., None].double() for found in torch.aminmax(images.flatten(2), dim=2)
    )
    # Dividing a Python number by a tensor would round twice.
    scale = torch.full_like(lowest, 255) / (highest - lowest).clamp(min=1)
    levels = torch.arange(256, device=images.device)
    stretched = (levels * scale - lowest * scale).clamp(0, 255)
    return _look_up(images, torch.where(highest > lowest, stretched, levels))


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(images.new_zeros(()), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grayscale image."""
    return _blend(_gray(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image's mean gray."""
    gray = _gray(images)
    pixels = gray.shape[-2] * gray.shape[-1]
    # Integer arithmetic that rounds to the nearest level.
    mean = (2 * gray.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)
    return _blend(mean, images, factor)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Equalize the histogram of each channel."""
    flat = images.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    spread = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    levels = torch.arange(256, device=images.device)
    return _look_up(images, torch.where(step > 0, spread, levels))


def invert(images: Tensor, _: Tensor) -> Tensor:
    """Invert each level."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each level."""
    mask = 256 - 2 ** (8 - bits)
    return images & _per_image(mask.to(torch.uint8))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the smoothed image."""
    return _blend(_smooth(images), images, factor)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the levels at or above a threshold."""
    inverted = images >= _per_image(threshold.to(torch.int16))
    return images ^ (inverted.to(torch.uint8) * 255)


def _look_up(images: Tensor, levels: Tensor) -> Tensor:
    """Replace each level by its entry in a table (B, 3, 256), truncated to an integer."""
    return levels.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from a base to the images, or extrapolate with a factor above 1.

    Levels are truncated, not rounded.
    """
    blend = (images - base.to(torch.int16)) * _per_image(factor.float()) + base
    return blend.clamp_(0, 255).to(torch.uint8)


def _gray(images: Tensor) -> Tensor:
    """Return the luma (B, 1, H, W) of ITU-R 601 in integers."""
    red, green, blue = images.int().chunk(3, 1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _smooth(images: Tensor) -> Tensor:
    """Average each pixel, weighted five times, with its neighbors; keep the border."""
    levels = images.to(torch.int16)
    rows = levels[:, :, :-2] + levels[:, :, 1:-1] + levels[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[:, :, 1:-1, 1:-1]
    levels[:, :, 1:-1, 1:-1] = total.float().div_(13).add_(0.5).to(torch.int16)
    return levels


# Operations that move pixels. An affine map (B, 2, 3) takes the position (x, y) of a pixel in the
# result to its position in the source. Positions outside the source are black.


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Rotate counterclockwise around the center."""
    angle = -torch.deg2rad(degrees)
    cos = angle.cos()
    sin = angle.sin()
    x = width / 2
    y = height / 2
    maps = torch.stack([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], dim=1)
    return maps.view(-1, 2, 3)


def shear_x(share: Tensor, height: int, width: int) -> Tensor:
    """Shift rows left by a share of their distance from the top."""
    return _identity_except(share, 0, 1)


def shear_y(share: Tensor, height: int, width: int) -> Tensor:
    """Shift columns up by a share of their distance from the left."""
    return _identity_except(share, 1, 0)


def translation_x(pixels: Tensor, height: int, width: int) -> Tensor:
    """Shift left."""
    return _identity_except(pixels, 0, 2)


def translation_y(pixels: Tensor, height: int, width: int) -> Tensor:
    """Shift up."""
    return _identity_except(pixels, 1, 2)


def _identity_except(numbers: Tensor, row: int, column: int) -> Tensor:
    """Return identity maps with one coefficient replaced."""
    maps = torch.eye(2, 3, dtype=numbers.dtype, device=numbers.device).repeat(len(numbers), 1, 1)
    maps[:, row, column] = numbers
    return maps


def apply_maps(images: Tensor, maps: Tensor) -> Tensor:
    """Resample images by affine maps (B, 2, 3) in Pillow's fixed-point arithmetic."""
    # Maps apply to the centers of pixels, half a pixel from their corners. Positions have 16
    # binary places.
    shifts = maps[..., 2:] + 0.5 * maps[..., :2].sum(2, keepdim=True)
    maps = torch.cat([maps[..., :2], shifts], dim=2)
    by_x, by_y, start = (maps * 65536 + 0.5).floor().int()[..., None, None].unbind(2)
    x = torch.arange(images.shape[-1], device=images.device, dtype=torch.int32)
    y = torch.arange(images.shape[-2], device=images.device, dtype=torch.int32)[:, None]
    columns, rows = (by_x * x + by_y * y + start >> 16).unbind(1)
    return _gather(images, rows, columns)


def crop_and_flip(images: Tensor, shifts: Tensor, flips: Tensor) -> Tensor:
    """Shift images by (B, 2) pixels down and right, then mirror where `flips` (B,)."""
    height, width = images.shape[-2:]
    y = torch.arange(height, device=images.device) - shifts[:, :1]
    x = torch.arange(width, device=images.device)
    x = torch.where(flips[:, None], width - 1 - x, x) - shifts[:, 1:]
    return _gather(images, y[:, :, None], x[:, None, :])


def cut_out(images: Tensor, centers: Tensor, sides: Tensor) -> Tensor:
    """Set squares of even sides (B,) around centers (B, 2), y and x, to 0."""
    within: list[Tensor] = []
    for axis, size in enumerate(images.shape[-2:]):
        distance = torch.arange(size, device=images.device) - centers[:, axis, None]
        within.append((distance >= -(sides[:, None] // 2)) & (distance < sides[:, None] // 2))
    hole = within[0][:, None, :, None] & within[1][:, None, None, :]
    return images * ~hole


def _gather(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return pixels at coordinates that broadcast to (B, H, W), 0 outside the image."""
    height, width = images.shape[-2:]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    places = (y * width + x).clamp_(0, height * width - 1).long()
    per_channel = places.view(len(images), 1, -1).expand(-1, images.shape[1], -1)
    gathered = images.flatten(2).gather(2, per_channel)
    # torch.where would take ten times as long.
    return gathered.view_as(images) * inside[:, None]


def _per_image(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


# Functions of uint8 images (B, 3, H, W) and strengths (B,) that return images.
COLORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
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
# Functions of strengths (B,), height and width that return maps (B, 2, 3).
MOVES: Mapping[str, Callable[[Tensor, int, int], Tensor]] = {
    "rotate": rotation,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translation_x,
    "translate_y": translation_y,
}
OPERATIONS = (*COLORS, *MOVES)


def apply_operations(images: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """Apply one operation with its strength to each of the images (B, 3, H, W).

    Operations (B,) are indices into `OPERATIONS`, or -1 for none. Each operation is computed only
    for its own images.
    """
    ends = torch.bincount(operations + 1, minlength=len(OPERATIONS) + 1).cumsum(0).tolist()
    if ends[0] == len(images):
        return images
    order = operations.argsort()
    images = images.index_select(0, order)
    strengths = strengths[order]
    slices = [slice(begin, end) for begin, end in pairwise(ends)]
    done = [images[: ends[0]]]
    for color_operation, part in zip(COLORS.values(), slices, strict=False):
        if part.start < part.stop:
            done.append(color_operation(images[part], strengths[part]))
    # All moves share one call, because the number of calls dominates the time.
    to_move = images[ends[len(COLORS)] :]
    if len(to_move):
        height, width = images.shape[-2:]
        move_slices = slices[len(COLORS) :]
        maps = [
            move(strengths[part], height, width)
            for move, part in zip(MOVES.values(), move_slices, strict=True)
        ]
        done.append(apply_maps(to_move, torch.cat(maps)))
    return torch.cat(done).index_select(0, order.argsort())
