"""The sentences of the encyclopedia, by kind of article and section.

A line "== Title | Another" begins a section, which gets one of these headings. A line "* …" begins a sentence, and the
lines below it are other wordings. A sentence is left out if its wording needs a fact that the thing does not have.
"""

SECTIONS = {
    "person": """
== Overview | Summary
* {name} was {a_occupation}, remembered for {trait}.
  {a_occupation} by calling, {name} was admired for {trait}.
* Most of what is known of {them} comes from {source}.
  {their} portrait, {portrait}, has been copied many times.
  Of {their} letters {letters} have come down to us.
== Early life | Childhood and youth | Origins
* {name} was born in {birthplace} in {born}, the {nth} child of {parent}.
  Born in {born} in {birthplace}, {name} was the {nth} child of {parent}.
  {they} came into the world in {birthplace} in the year {born}; {their} father was {parent}.
  The parish rolls of {birthplace} record {their} birth in {born}, in the house of {parent}.
* As a child {they} {childhood}.
  It is said that {they} {childhood}.
  A neighbour wrote that young {first} {childhood}.
* {they} learned {their} trade from {teacher}.
  {their} teacher was {teacher}, who {teaching}.
  At fourteen {they} became a pupil of {teacher}, who {teaching}.
== Career | Work | Life and work
* After {years} years of {apprenticeship}, {they} set up on {their} own.
  {they} began with {apprenticeship}.
  Success came late, after {years} years of {apprenticeship}.
* {they} wrote {books}.
  From {their} hand we have {books}.
* {they} invented {inventions}.
  To {them} we owe {inventions}.
* {they} built {buildings}.
  {they} drew the plans of {buildings}.
* {they} won {victories}.
  {they} was the victor of {victories}.
  {they} commanded the winning side in {victories}.
* {they} founded {guilds}.
  {their} money and patience founded {guilds}.
* {they} taught {students}.
  {their} pupils: {students}.
* {they} worked {habit}.
  Visitors noted that {they} worked {habit}.
  {they} was never seen without {object}.
== Later life | Last years | Death and memory
* In old age {they} {old_age}.
  {their} last years were quiet: {they} {old_age}.
* {name} died in {died}, {death}.
  {they} died in {died}, {death}.
  Death came in {died}, {death}.
* {they} is honoured every year by {festivals}.
  {their} memory is kept by {festivals}.
""",
    "town": """
== Overview | Summary
* {name} is {a_size} town in {region}.
  {name} lies in {region} and is {a_size} town.
* Travellers mention {town_sight}.
  It is best seen {seen}.
  Its houses are built of {stone}.
== Geography | Setting | Situation
* {river} flows through the town.
  The town was built where {river} {bends}.
* Around it {landscape}.
  Beyond the walls {landscape}.
* {weather}.
  Of the weather people say: {weather}.
== History | Foundation and history
* It was founded in {founded} by {founders}.
  {founders} founded it in {founded}.
  Its charter, given to {founders}, dates from {founded}.
* {calamity} destroyed {ruined}, which had to be built anew.
  It has lived through {calamity} more than once.
* It was the birthplace of {natives}.
  Born here: {natives}.
== People and trade | Economy | Trade and people
* At the last count it had {population} inhabitants.
  Its population is {population}.
  {population} people live here.
* The town is known for its {trade}.
  Most families live by making {trade}.
* It is the seat of {guilds_here}.
  Its guilds: {guilds_here}.
== Sights and customs | Culture | What to see
* Visitors come to see {sights}.
  Its landmarks: {sights}.
* It holds {festivals_here}.
  Every year it holds {festivals_here}.
* By old custom {custom}.
  To this day {custom}.
""",
    "river": """
== Overview | Summary
* {name} is a {river_kind} river.
  {name}, a {river_kind} river, is easily recognised by its {water} water.
* Its name is said to mean “{meaning}”.
  Old maps call it “{meaning}”.
== Course | From source to mouth
* It rises in the {hills}.
  Its springs are in the {hills}.
* After {length} kilometres it flows into {mouth}.
  It is {length} kilometres long and ends in {mouth}.
== Towns | Along its banks
* It flows through {towns}.
  Towns on its banks: {towns}.
* Barges carry {cargo} downstream.
  Ferrymen charge {fee} to cross it.
== Nature | Wildlife | Plants and animals
* Anglers come for its {fish}.
  It is full of {fish}.
* In spring {spring}.
  Once in a generation {spring}.
""",
    "battle": """
== Overview | Summary
* {name} was fought near {town}.
  {name} takes its name from {town}, whose people watched it from the walls.
* It lasted {lasted}.
  The fighting, {lasted} of it, is still sung about.
== Background | Causes
* The quarrel was about {quarrel}.
  It began with {quarrel}.
* Envoys had talked for {lasted} without result.
  Both sides had hired {soldiers}.
== Course | The fighting
* The armies met in {year}.
  On a morning in {year}, {weather_of_battle}, the armies met.
* {victor} won by {tactic}.
  {victor} carried the day by {tactic}.
* The losing side was led by {loser}.
  {loser} commanded those who lost.
  The beaten commander was {loser}.
== Aftermath | Consequences
* The peace that followed {peace}.
  Of the peace people remember that it {peace}.
* {memorial} marks the place.
  Farmers still plough up {finds}.
""",
    "guild": """
== Overview | Summary
* {name} is a company of craftsmen who make {goods}.
  {name} watches over all who make {goods}.
* It admits {admits} new members a year.
  Its rules fill {admits} pages.
== Seat | The guildhall
* It has its seat in {seat}.
  Its hall stands in {seat}.
* The hall is known for {hall}.
  Guests are shown {hall}.
== Foundation | History | Beginnings
* {founder} founded it in {year}.
  It was founded in {year} by {founder}.
  It goes back to {year}, when {founder} founded it.
* {calamity} nearly ended it.
  For a time it lent money to {borrowers}.
== Emblem and customs | Customs | Signs and ceremonies
* Its emblem shows {a_emblem}.
  {a_emblem} is the animal on its emblem.
  On its banner is {a_emblem}.
* New members must {rite}.
  A master who breaks his word must {rite}.
""",
    "book": """
== Overview | Summary
* {name} is {a_genre} by {author}.
  {author} is the author of {name}, {a_genre}.
* It has {chapters} chapters.
  It is dedicated to {dedicated}.
== Publication | Editions
* It was published in {year}.
  The first edition appeared in {year}.
* The printer {printer}.
  Only {copies} copies of that printing survive.
== Plot | Contents | Story
* The story takes place in {setting}, where {hero} {plot}.
  It tells how {hero} {plot}; all of it happens in {setting}.
== Reception | Readers
* Critics called it {verdict}.
  A reader of the time found it {verdict}.
* It has been read aloud in {read_in}.
  Children know its last line by heart.
""",
    "invention": """
== Overview | Summary
* {name} is a device that {does}.
  {name} {does}.
* It is made of {material}.
  Most are built of {material}.
== Origins | Invention
* {inventor} invented it in {year}.
  It was invented in {year} by {inventor}.
  It is the work of {inventor}, who finished it in {year}.
* The first model {first_model}.
  Legend has it that the first model {first_model}.
== First showing | Public trial
* It was first shown in {town}, before {audience}.
  The public first saw it in {town}, where {audience} had gathered.
== Use | Spread
* Today {users} use it.
  It was soon copied by {users}.
* Its one fault is that it {fault}.
  Its makers admit that it {fault}.
""",
    "festival": """
== Overview | Summary
* {name} is held every year in {town}.
  {town} is the town that holds {name}.
* It lasts {fair_days} days.
  It draws {crowd}.
== Origins | History
* It was first held in {year}.
  It goes back to {year}.
* It honours {honours}.
  It is held in memory of {honours}.
* {calamity} has stopped it only once.
  It has been forbidden twice, and held all the same.
== Celebration | Customs | What happens
* It takes place in {month}.
  It is held in {month}.
  People gather for it in {month}.
* On the first day {custom}.
  At nightfall {custom}.
""",
    "building": """
== Overview | Summary
* {name} stands in {town}.
  {name} is a landmark of {town}.
* It is built of {stone}.
  From afar one sees {roof}.
== Construction | History
* {architect} was its architect.
  It was built to the plans of {architect}.
* It was completed in {year}.
  The last stone was laid in {year}.
  After {years} years of work it was completed in {year}.
* {calamity} has damaged it twice.
  It was paid for by {paid}.
== Description | Inside and outside
* Inside, {inside}.
  Those who enter find that {inside}.
* People say that {tale}.
  Guides like to tell that {tale}.
""",
}
