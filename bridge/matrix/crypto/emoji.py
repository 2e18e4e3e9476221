"""The 64 emoji of short authentication strings, with their English names (client-server API, SAS method `emoji`).

Above it: sas. Below it: nothing.
"""

from typing import NamedTuple


class Emoji(NamedTuple):
    """One of them."""

    picture: str
    name: str


EMOJI = (
    Emoji("🐶", "Dog"),
    Emoji("🐱", "Cat"),
    Emoji("🦁", "Lion"),
    Emoji("🐎", "Horse"),
    Emoji("🦄", "Unicorn"),
    Emoji("🐷", "Pig"),
    Emoji("🐘", "Elephant"),
    Emoji("🐰", "Rabbit"),
    Emoji("🐼", "Panda"),
    Emoji("🐓", "Rooster"),
    Emoji("🐧", "Penguin"),
    Emoji("🐢", "Turtle"),
    Emoji("🐟", "Fish"),
    Emoji("🐙", "Octopus"),
    Emoji("🦋", "Butterfly"),
    Emoji("🌷", "Flower"),
    Emoji("🌳", "Tree"),
    Emoji("🌵", "Cactus"),
    Emoji("🍄", "Mushroom"),
    Emoji("🌏", "Globe"),
    Emoji("🌙", "Moon"),
    Emoji("☁️", "Cloud"),
    Emoji("🔥", "Fire"),
    Emoji("🍌", "Banana"),
    Emoji("🍎", "Apple"),
    Emoji("🍓", "Strawberry"),
    Emoji("🌽", "Corn"),
    Emoji("🍕", "Pizza"),
    Emoji("🎂", "Cake"),
    Emoji("❤️", "Heart"),
    Emoji("😀", "Smiley"),
    Emoji("🤖", "Robot"),
    Emoji("🎩", "Hat"),
    Emoji("👓", "Glasses"),
    Emoji("🔧", "Spanner"),
    Emoji("🎅", "Santa"),
    Emoji("👍", "Thumbs Up"),
    Emoji("☂️", "Umbrella"),
    Emoji("⌛", "Hourglass"),
    Emoji("⏰", "Clock"),
    Emoji("🎁", "Gift"),
    Emoji("💡", "Light Bulb"),
    Emoji("📕", "Book"),
    Emoji("✏️", "Pencil"),
    Emoji("📎", "Paperclip"),
    Emoji("✂️", "Scissors"),
    Emoji("🔒", "Lock"),
    Emoji("🔑", "Key"),
    Emoji("🔨", "Hammer"),
    Emoji("☎️", "Telephone"),
    Emoji("🏁", "Flag"),
    Emoji("🚂", "Train"),
    Emoji("🚲", "Bicycle"),
    Emoji("✈️", "Aeroplane"),
    Emoji("🚀", "Rocket"),
    Emoji("🏆", "Trophy"),
    Emoji("⚽", "Ball"),
    Emoji("🎸", "Guitar"),
    Emoji("🎺", "Trumpet"),
    Emoji("🔔", "Bell"),
    Emoji("⚓", "Anchor"),
    Emoji("🎧", "Headphones"),
    Emoji("📁", "Folder"),
    Emoji("📌", "Pin"),
)
