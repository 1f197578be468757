"""The binary floating-point formats, and the polynomials of the elementary functions in each.

The polynomials are minimax ones, by the algorithm of Remez, in the error relative to the function:
they add less than 2**-27 (float) or 2**-55 (double). ``python -m tests.codegen.minimax`` computes
them again.
"""

from __future__ import annotations

from typing import final

from minitvm.codegen.lanes import Lanes
from minitvm.runtime.dtype import FLOAT32
from minitvm.runtime.record import record
from minitvm.tir.scalars import round_float


@final
@record()
class Format:
    """A binary format, and the polynomials for it.

    With r in [-ln(2) / 2, ln(2) / 2], s in [-0.172, 0.172], z the square of the variable::

        exp(r) = 1 + r + r**2 * exp          log((1 + s) / (1 - s)) = 2 * s + s * z * log
                                             log = 2 / 3 + z * log_tail (float64)
        sinh(r) = r + r * z * sinh           cosh(r) = 1 + z * cosh
        sin(r) = r + r * z * sin             cos(r) = 1 - z / 2 + z**2 * cos     (r to pi / 4)
        asin(x) = x + x * z * asin           atan(x) = x + x * z * atan    (x to 1 / 2, to 1)
        erf(x) = 1 - exp(-(x + x * erf))                                  (to erf_is_one)
    """

    digits: int  # digits of the significand behind the point
    bias: int  # of the exponent
    far: float  # from here on the reduction by multiples of pi / 2 isn't exact enough
    tanh_is_one: float
    erf_is_one: float
    exp: tuple[float, ...]
    sinh: tuple[float, ...]
    cosh: tuple[float, ...]
    log: tuple[float, ...]
    log_tail: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    asin: tuple[float, ...]
    atan: tuple[float, ...]
    erf: tuple[float, ...]

    @property
    def rounder(self) -> float:
        """A number whose addition to another leaves the nearest integer in the lowest bits."""
        return 1.5 * 2.0**self.digits

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.digits

    @property
    def width(self) -> int:
        """The bits of the exponent."""
        return (2 * self.bias).bit_length()

    @property
    def sign(self) -> int:
        """The bits of -0.0, as a signed integer."""
        return -(2 * self.bias + 2) << self.digits

    def parts(self, above: int, below: int, count: int) -> tuple[float, ...]:
        """Floats whose sum is ``above / below``, the largest first. Python rounds the quotient of
        two integers correctly."""
        made = []
        for _ in range(count):
            part = above / below
            made.append(round_float(FLOAT32, part) if self.digits == 23 else part)
            part_above, part_below = made[-1].as_integer_ratio()
            above, below = above * part_below - part_above * below, below * part_below
        return tuple(made)


# Constants with 63 decimals, as integers.
ONE = 10**63
LN2 = 693147180559945309417232121458176568075500134360255254120680009
LN10 = 2302585092994045684017991454684364207601101488628772976033327901
HALF_PI = 1570796326794896619231321691639751442098584699687552910487472296

SINGLE = Format(
    digits=23, bias=127, far=2.0**17, tanh_is_one=9.1, erf_is_one=3.95,
    exp=(0.5, 0.16666666, 0.041666295, 0.008333496, 0.0013944645, 0.00019790741),
    sinh=(0.16666667, 0.008333289, 0.00019904866),
    cosh=(0.5, 0.041666266, 0.0013946213),
    log=(0.66666776, 0.39977577, 0.2987082),
    log_tail=(),
    sin=(-0.16666655, 0.00833216, -0.00019515277),
    cos=(0.041666646, -0.0013887316, 2.4433213e-5),
    asin=(0.16666752, 0.074953005, 0.04547002, 0.024181154, 0.042163674),
    atan=(
        -0.333333, 0.19998549, -0.14264247, 0.10952213, -0.08403534, 0.057959106,
        -0.031179428, 0.01091549, -0.0017938258,
    ),
    erf=(
        0.12837917, 0.6366198, 0.102771275, -0.019117685, -0.00025308423, 0.0017993842,
        -0.00074070913, 0.00016749128, -2.1357051e-5, 1.1935407e-6,
    ),
)  # fmt: skip
DOUBLE = Format(
    digits=52, bias=1023, far=2.0**28, tanh_is_one=19.1, erf_is_one=5.95,
    exp=(
        0.5, 0.16666666666666682, 0.041666666666666095, 0.008333333333317046,
        0.0013888888889115286, 0.00019841269896354107, 2.4801586927108896e-5,
        2.7557234893013562e-6, 2.7557581564908156e-7, 2.5112025562393886e-8,
        2.0826684416838584e-9,
    ),
    sinh=(
        0.16666666666666677, 0.008333333333321681, 0.0001984126988598991,
        2.7557244352744636e-6, 2.510898520753899e-8,
    ),
    cosh=(
        0.5000000000000013, 0.041666666666514446, 0.0013888888947217442,
        2.4801489771145676e-5, 2.76313315265572e-7,
    ),
    log=(
        0.6666666666666734, 0.39999999999416497, 0.28571428741983634, 0.22222198614465996,
        0.18183562194124453, 0.15314104673441067, 0.14795412979111047,
    ),
    log_tail=(
        0.3999999999999998, 0.28571428571445096, 0.22222222217539964, 0.1818181886989849,
        0.15384556898779986, 0.13336316366226106, 0.11674839653709337, 0.1198883835073417,
    ),
    sin=(
        -0.1666666666666663, 0.00833333333332211, -0.00019841269829583177,
        2.7557313619264663e-6, -2.505074743665781e-8, 1.589621136245262e-10,
    ),
    cos=(
        0.041666666666666595, -0.001388888888887305, 2.4801587288847245e-5,
        -2.755731417804523e-7, 2.08757006748757e-9, -1.1358527950159363e-11,
    ),
    asin=(
        0.1666666666666541, 0.07500000000336814, 0.04464285682847315, 0.030381959131464548,
        0.02237175817632231, 0.017359702911078575, 0.013885253571433283,
        0.012169092991520193, 0.006528489781220432, 0.01952685048258256,
        -0.016222020798158744, 0.0319107318179812,
    ),
    atan=(
        -0.3333333333333307, 0.19999999999951476, -0.1428571428257584, 0.11111111007044694,
        -0.09090907003286929, 0.07692279842480737, -0.06666404081994196,
        0.058805279520762144, -0.05253519136053286, 0.04722324114318281,
        -0.04219183746246303, 0.03664200536223229, -0.029904004103146656,
        0.021985028193409684, -0.013900721865786883, 0.007196616262775673,
        -0.0028849761807053383, 0.0008313421481583127, -0.00015216526017594075,
        1.3225516869361892e-5,
    ),
    erf=(
        0.12837916709551256, 0.6366197723675836, 0.10277260330178865, -0.019128447005068182,
        -0.00020919469486738702, 0.001696206385933408, -0.0005901255538748591,
        2.587860792863584e-5, 6.449185085849425e-5, -2.9724025508108645e-5,
        3.40723258665296e-6, 2.835181432968286e-6, -1.7415886190504799e-6,
        3.3639772397767933e-7, 1.371606212888308e-7, -1.4175067976740024e-7,
        6.572874484315639e-8, -2.0961062286980157e-8, 4.9972847600098886e-9,
        -9.081369019849437e-10, 1.248276946577749e-10, -1.2609495049974217e-11,
        8.8444024298661e-13, -3.849964524295683e-14, 7.832937230667162e-16,
    ),
)  # fmt: skip


def format_of(x: Lanes) -> Format:
    """The format of the lanes."""
    return SINGLE if x.is_single else DOUBLE
