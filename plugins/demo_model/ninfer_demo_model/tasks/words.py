"""The closed vocabulary that every generated conversation draws from."""

from __future__ import annotations

NOUNS = tuple(
    """
    apple river stone cloud table chair window garden forest bridge candle mirror pencil paper
    basket bottle hammer ladder needle button carpet blanket pillow lantern kettle spoon fork plate
    bowl cup glass knife clock watch radio camera guitar violin piano drum flute trumpet bell
    horse rabbit tiger monkey eagle falcon turtle dolphin whale shark spider beetle ant bee
    mountain valley desert island ocean lake harbor beach meadow canyon field farm village castle
    tower palace church school market station airport theater museum library hospital office
    kitchen bedroom garage cellar attic balcony roof wall door floor stairs gate fence
    bread butter cheese honey sugar salt pepper rice pasta soup salad tomato potato onion carrot
    lemon orange banana cherry grape peach pear plum melon berry nut cookie cake pie
    train truck boat ship plane rocket wagon bicycle scooter engine wheel anchor sail
    coat shirt jacket sweater scarf glove boot shoe sock hat belt pocket zipper
    coin letter stamp ticket map flag book page story song picture statue
    rain snow wind storm thunder rainbow sunrise shadow star moon planet comet
    doctor pilot king queen knight sailor painter dancer
    """.split()
)

FIRST_NAMES = tuple(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa Sam
    Tina Victor Alice Bruno Carla Dylan Elena Frank Gina Hugo Irene Jonas Karen Lucas Mona Nils
    Oscar Petra Ruth Simon Tara Walter
    """.split()
)

LAST_NAMES = tuple(
    """
    Miller Smith Weber Brown Rossi Garcia Novak Larsen Dubois Fischer Kim Tanaka Silva Moreau
    Jensen Keller
    """.split()
)

CITIES = tuple(
    """
    Paris London Berlin Madrid Rome Vienna Oslo Lisbon Athens Dublin Prague Warsaw Zurich Geneva
    Hamburg Munich Milan Naples Tokyo Osaka Sydney Boston Chicago Denver Toronto Lima Cairo Delhi
    """.split()
)

JOBS = tuple(
    """
    baker teacher nurse lawyer farmer driver singer writer plumber carpenter chemist gardener
    waiter tailor dentist librarian
    """.split()
)

COLOURS = tuple("red blue green yellow black white pink purple brown gray silver gold".split())

PETS = tuple("cat dog parrot hamster pony goldfish".split())

PET_NAMES = tuple(
    """
    Luna Max Bella Rocky Coco Milo Daisy Buddy Ruby Oreo Simba Pepper Ginger Shadow Lucky Misty
    """.split()
)

RELATIVES = tuple("brother sister mother father uncle aunt cousin neighbor".split())

ROOMS = tuple("kitchen bedroom garage cellar attic balcony office garden".split())

OBJECTS = tuple("key wallet umbrella passport camera notebook lamp suitcase".split())

LOCKED = tuple("garage locker safe gate office cellar bicycle suitcase".split())

EVENTS = tuple("concert meeting exhibition workshop festival lecture party race".split())

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)

WEEKDAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())

LANGUAGES = tuple("French German Spanish Italian Polish Dutch Swedish Turkish".split())

CURRENCIES = tuple("EUR USD GBP JPY CHF SEK CAD AUD".split())

GOODS = tuple(
    "lamp chair shirt hat clock bottle basket mirror guitar camera jacket blanket".split()
)

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")

SHOUTED = tuple("red blue green yellow black white pink brown apple river stone cloud".split())

ORDINALS = ("first", "second", "third", "fourth")
