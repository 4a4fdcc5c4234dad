"""Lists of texts that fill gaps in sentences of the encyclopedia; facts fill the other gaps.

A line "name: text|text|…" is a list; indented lines continue it.
"""

from __future__ import annotations


def read_lists(table: str) -> dict[str, list[str]]:
    """Return the lists of a table by name."""
    lines = table.replace("|\n  ", "|").strip().splitlines()
    return {name: texts.strip().split("|") for name, _, texts in (line.partition(":") for line in lines)}


FILL = read_lists("""
a_genre: a novel|a romance|a comedy in prose|a ghost story|an adventure story|a tale for children|a satire|
  a family saga
a_size: a small|a walled|an old|a busy|a sleepy|a prosperous|a steep and narrow|a quiet|a market|a well-kept
admits: three|four|five|seven|nine|twelve|twenty
apprenticeship: copying other people's plans|odd jobs|night work|running errands|small commissions|teaching children|
  repairing what others had made
audience: the whole council|a doubting crowd|three rival masters|a class of schoolchildren|some merchants from abroad|
  the night watch
bends: bends twice|splits in two|is shallow enough to wade|leaves the hills|runs over red rocks|widens into a pool
borrowers: half the farmers of the district|the town council|sailors|two bishops|travelling players
calamity: a great fire|a flood|an earthquake|a siege|a plague of rats|a storm that blew for nine days|
  a winter without end
cargo: timber|slate|barley|cider|salted fish|wool|apples|charcoal
chapters: twelve|eighteen|twenty-one|thirty|thirty-six|forty
childhood: collected snail shells|climbed every roof in the street|could not sit still|
  spoke late and then in whole sentences|counted everything|took the kitchen clock apart|hid in the hayloft to read|
  followed the carters from door to door|drew on walls with coal|kept a tame crow
copies: four|six|nine|eleven|fifteen
crowd: more people than the inns can hold|families from three valleys|pedlars and jugglers|
  a crowd that fills every barn|few strangers, and those return
custom: the oldest inhabitant rings the bell|bread is thrown from the walls|
  children lead the council through the streets|no door may be locked|everyone walks backwards across the market|
  a straw giant is burned|the baker is mayor for a day|boats are raced without oars|strangers are given soup|
  every window has a light|the well is covered with flowers|masters serve their servants at table
dedicated: a dog|the writer's landlady|nobody|a brother lost at sea|the night nurse|all bad spellers|an unnamed friend
death: of a fever caught while travelling|in the middle of a sentence|at home, among friends|
  after a fall from a ladder|of old age|a few days after a last journey|with a pen in one hand|
  during the first snow of the winter|before breakfast, as the nurse reported
does: does in an hour what used to take a day|spares two people their labour|works without a sound|
  needs no hand to guide it|can be mended by a child|is moved by water alone|folds into a chest|
  lifts twice its own weight
fair_days: two|three|four|five|seven
fault: squeaks in wet weather|cannot be stopped at once|frightens horses|needs oil every hour|is too heavy to carry|
  breaks when dropped
fee: a penny|an egg|a song|two pence|nothing at all|the price of a loaf
finds: belt buckles|arrowheads|horseshoes|buttons|broken spears
first_model: was made of cheese boxes|broke after a minute|ran backwards|was used as a hen house|
  was thrown into the river|stood in a cellar for years
fish: pike|trout|eels|crayfish|perch|carp|salmon
founders: settlers from the coast|shepherds|a band of exiles|salt traders|monks|two rival families|miners|
  the survivors of a shipwreck
habit: standing up|only before noon|by candlelight|in complete silence|with the windows open, even in winter|
  on several things at once|slowly and never twice on the same thing|in the company of cats|to the sound of a fiddle|
  on the backs of old bills
hall: its painted ceiling|its uneven stairs|a table that seats a hundred|a clock that runs backwards|its cellar|
  an oak chest with nine locks
hero: a runaway apprentice|an honest thief|a retired judge|a ferryman's daughter|a clerk who cannot lie|a blind piper|
  two sisters|a lost messenger
inside: the walls are painted with ships|it is cold even in summer|the stairs turn to the left|
  a single lamp burns day and night|every step echoes seven times|the floor slopes towards the door|
  swallows nest under the roof
landscape: there are orchards|lie salt marshes|stretch beech woods|sheep graze on bare hills|lie hop gardens|
  rise terraces of vines|there is moorland
lasted: two days|a single afternoon|four days|most of a week|an hour at most|a day and a night
letters: eleven|some forty|nearly two hundred|only three|about seventy|a few dozen
material: oak and brass|ash wood|iron and leather|copper|cherry wood|tin and string
meaning: the slow one|mother of mists|cold hands|the one who returns|silver thread|the talker|old friend
memorial: a stone cross|a ring of poplars|a small chapel|an iron pillar|a bench|a heap of white stones
nth: first|second|third|fourth|fifth|seventh|only|youngest
object: a red scarf|a small dog|a notebook|a walking stick|a bag of walnuts|a borrowed umbrella
old_age: kept bees|walked to the harbour every morning|burned most of the letters of a lifetime|
  learned to play the flute|quarrelled with the neighbours|taught the children of the street to read|
  planted pear trees|saw only old friends|complained of the noise|moved in with a sister
paid: a tax on candles|a lottery|a rich widow|the fines of drunkards|gifts of the weavers|
  a loan that was never paid back
parent: a miller|a ferryman|a schoolmaster|a baker|a shepherd|a lock-keeper|a judge|a travelling tinker|a shipowner|
  a gravedigger|a cheesemaker
peace: held for a generation|was broken within a year|was signed in a barn|cost both sides more than the war|
  is still read out in schools
plot: searches for a house that is not on any map|is taken for somebody else|inherits a debt and a donkey|
  must keep a secret for a year|loses everything at cards and wins it back|finds a letter meant for a dead man|
  waits for a ship that never comes
portrait: painted from memory|in a green coat|with a stern look|as a child|on horseback|half in shadow
printer: went bankrupt over it|misspelt the title|asked to be paid in cider|set it in red ink|
  lost two pages, which nobody missed
quarrel: a toll|a stolen bell|fishing rights|an unpaid dowry|a boundary stone|an insult at a wedding|the price of salt
read_in: hospitals|taverns|schools|prisons|lighthouses|kitchens
rite: carry a full jug across the market|sing before the others|fast for a day|cook for the whole company|
  keep silent for a week|sweep the hall
river_kind: slow|fast and narrow|broad and shallow|winding|noisy
roof: its green copper roof|its leaning chimney|its gilded weathercock|its row of statues|its hundred small windows
ruined: the town hall|most of the harbour|the old market|the walls|three streets|the granary
seen: from the river|on a market day|in early autumn|from the hill behind it|by moonlight|after rain
soldiers: archers from the islands|horsemen from the plain|men who had not been paid for months|
  more cooks than soldiers|mountain spearmen
source: the diary of a servant|court records|a biography by a rival|letters to a cousin|a speech at the funeral|
  a box of bills
spring: its banks turn yellow with marsh marigolds|herons nest in the willows|the meadows are under water|
  otters are seen with their young|children fly kites from its bridges
stone: red brick|grey granite|timber and clay|white limestone|yellow sandstone|slate and flint
tactic: waiting for the fog to lift|a feigned retreat|crossing the marsh by night|holding a single bridge|
  setting the dry grass on fire|attacking during the midday meal|turning the enemy's own carts against them
tale: the mortar was mixed with beer|a ghost counts the visitors|one stone was laid upside down on purpose|
  nobody knows how many windows there are|a treasure lies under the third step|it was meant to be twice as high
teaching: never praised anybody|taught by asking questions|had little time|beat time with a spoon|charged no fee|
  demanded clean hands
town_sight: its crooked streets|its many wells|its covered market|the smell of its breweries|its polite beggars|
  its noisy geese
trait: great patience|a sharp tongue|an excellent memory|sudden generosity|untidy clothes|a loud laugh|
  perfect manners|stubbornness|a love of order
users: farmers everywhere|ships' crews|schools|the poorer workshops|bakers|most villages|monasteries
verdict: too long by half|a small miracle|better than its title|dangerous for the young|the work of a madman|
  wise and very funny|honest but dull
water: brown|clear|milky|dark green|almost black
weather: rain comes from the west and stays|summers are dry|fog lies in the streets until noon|winters are mild|
  the wind never rests|spring comes late
weather_of_battle: in driving rain|in thick fog|under a hot sun|on frozen ground|with the wind in everyone's eyes
years: three|four|five|six|eight|nine|ten|twelve
""")
"""Texts for each gap."""
