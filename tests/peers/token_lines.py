"""Mixed lines that tokenizers trip over: English, Chinese, code, emoji, odd whitespace, digits, control characters."""

import random

_COMMON = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生自会那后能对着事其里所去行过家"
)
_PUNCTUATION = "，。！？；：“”‘’（）《》、…—～·"
_EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🇨🇳", "❤️", "☕", "🏳️‍🌈", "1️⃣", "🤷🏻‍♀️", "✅", "🦄", "𝕏"]
_SPACES = [
    *[" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", "\u0085", "\x0b"],
    *[
        "\x0c",
        "\u202f",
        "\ufeff",
        " \n",
        "\n\n",
        "\n \n",
        "\t\t",
        "    ",
        "        ",
        "\u180e",
        "\x1c",
        "\x1f",
        "\u2060",
    ],
]
_CONTROL = [chr(c) for c in (*range(32), 127, *range(0x80, 0xA0))]
_CODE = [
    "def f(x):\n    return x**2  # square",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 3.14e-5; }",
    "if __name__ == '__main__':",
    "#include <stdio.h>",
    "SELECT * FROM t WHERE id=42 AND name LIKE '%x_1%';",
    "x = {'a': [1,2,3], \"b\": None}",
    "https://example.com/a?b=1&c=%20#frag",
    '<div class="x">&nbsp;</div>',
    "let mut v: Vec<u8> = vec![0; 1024];",
    "\\frac{a_1}{b^{2}}",
    "0xDEADBEEF >>= 2;",
    "git commit -m 'fix: it''s'",
    "a->b::c<d>&&e||!f",
    "$HOME/.bashrc ~/x ${A:-b}",
    "    \tmixed indent\n\t  more",
]
_WORDS = (
    "don't I'LL we've It's they'RE 's 'S ''t rock'n'roll naïve café Straße ﬁn Ελλάδα привет мир "
    "שלום مرحبا नमस्ते ไทย "
    "한국어 日本語のテキスト "
    "ß İstanbul ı ǅ ª º ² ½ Ⅷ ① ٣ ४ ๕ 〇 五 1 12 123 1234 12345678 3.14 1,000,000 1e-10 0x1F v2.0.1 "
    "a1b2 ſ K 'ſ <|im_start|> <|im_end|> <|endoftext|> <|im_ |> _ __init__ - -- ... … !!! ?! "
    "@user #tag €5 £ ¥100 ± × ÷ "
    "← → ∑ √∞ e\u0301 a\u0308\u0301 \u0301 \u093f "
    "\u200d ☃ \ufffd \ue000 \U000f0000 \u0378 \U0001fae0 𠀀 𒀀 𝟘𝟙 \u1e9e Ꙁ ꟿ"
).split(" ")
_ENGLISH = (
    "the of and to in is that it was for on are as with his they at be this from or had by hot but some what there we "
    "can out other were all your when up use word how said an each she which do their time if will way about many then "
    "them would write like so these her long make thing see him two has look more day could go come did my sound no "
    "Unfortunately internationalisation, Shakespeare; mother-in-law (parenthesis) quickly. Yesterday? Wonderful! Mr."
).split()


def lines(count, seed=7):
    """`count` lines, the same for the same seed; no code points of Unicode 16, on which the tables of peers differ."""
    rng = random.Random(seed)
    han = [chr(c) for c in range(0x4E00, 0x9FA5)]

    def english():
        return " ".join(rng.choice(_ENGLISH) for _ in range(rng.randint(3, 14)))

    def chinese():
        pools = rng.choices([_COMMON, han, _PUNCTUATION], [70, 18, 12], k=rng.randint(1, 25))
        return "".join(rng.choice(pool) for pool in pools)

    def anything():
        points = (rng.choice([rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)]) for _ in range(4))
        return "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000 and _settled(c))

    pieces = [
        english,
        chinese,
        anything,
        lambda: rng.choice(_CODE),
        lambda: rng.choice(_EMOJI) * rng.randint(1, 3),
        lambda: rng.choice(_SPACES) * rng.randint(1, 3),
        lambda: rng.choice(_WORDS),
        lambda: rng.choice(_WORDS).upper(),
        lambda: rng.choice(_CONTROL),
        lambda: str(rng.randrange(10 ** rng.randint(1, 15))),
    ]
    kinds = [
        english,
        chinese,
        lambda: rng.choice(_CODE) + rng.choice(_SPACES) + rng.choice(_CODE),
        lambda: "".join(rng.choice(_EMOJI) + rng.choice(["", " ", "x"]) for _ in range(rng.randint(1, 6))),
        lambda: "".join(rng.choice(_WORDS) + rng.choice(_SPACES) for _ in range(rng.randint(1, 10))),
        lambda: " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 10))),
        lambda: "".join(rng.choice(pieces)() for _ in range(rng.randint(1, 10))),
        lambda: "".join(rng.choice(pieces)() for _ in range(rng.randint(1, 6))),
    ]
    return [kinds[index % len(kinds)]() for index in range(count)]


def _settled(point):
    """Assigned long ago, as Python's tables (Unicode 14 or later) know, or not at all in blocks still growing."""
    import unicodedata

    return unicodedata.ucd_3_2_0.category(chr(point)) != "Cn" or unicodedata.category(chr(point)) in ("Co", "Cf")
