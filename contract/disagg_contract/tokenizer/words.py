"""Common English words for the default tokenizer, in a fixed order (the order decides token ids).

The list covers roughly nine of ten words of everyday English prose; what it misses is put together from the pieces of
`disagg_contract.tokenizer.vocabulary`. Changing it changes token ids and therefore the tokenizer's digest.
"""

from typing import Final

_WORDS = """
the of and to in a is it you that he was for on are with as I his they be at one have this from or had by hot but some
what there we can out other were all your when up use word how said an each she which do their time if will way about
many then them would write like so these her long make thing see him two has look more day could go come did my sound
no most number who over know water than call first people may down side been now find any new work part take get place
made live where after back little only round man year came show every good me give our under name very through just
form much great think say help low line before turn cause same mean differ move right boy old too does tell sentence
set three want air well also play small end put home read hand port large spell add even land here must big high such
follow act why ask men change went light kind off need house picture try us again animal point mother world near build
self earth father head stand own page should country found answer school grow study still learn plant cover food sun
four thought let keep eye never last door between city tree cross since hard start might story saw far sea draw left
late run while press close night real life few stop open seem together next white children begin got walk example ease
paper often always music those both mark book letter until mile river car feet care second group carry took rain eat
room friend began idea fish mountain north once base hear horse cut sure watch color face wood main enough plain girl
usual young ready above ever red list though feel talk bird soon body dog family direct pose leave song measure state
product black short numeral class wind question happen complete ship area half rock order fire south problem piece
told knew pass farm top whole king size heard best hour better true during hundred am remember step early hold west
ground interest reach fast five sing listen six table travel less morning ten simple several vowel toward war lay
against pattern slow center love person money serve appear road map science rule govern pull cold notice voice fall
power town fine certain fly unit lead cry dark machine note wait plan figure star box noun field rest correct able
pound done beauty drive stood contain front teach week final gave green oh quick develop sleep warm free minute strong
special mind behind clear tail produce fact street inch lot nothing course stay wheel full force blue object decide
surface deep moon island foot yet busy test record boat common gold possible plane age dry wonder laugh thousand ago
ran check game shape yes cool miss brought heat snow bed bring sit perhaps fill east weight language among model
system data server request response token tokens user users assistant prompt message messages text input output value
values function functions code method return returns error errors file files string type types key keys row column
query search result results index memory cache block blocks pages network link bandwidth latency throughput queue
batch rate times seconds minutes hours days weeks month months years evening computer computers software hardware
program programs process processes thread threads task tasks job jobs service services client clients node nodes
cluster clusters pod pods worker workers router scheduler operator planner engine cost costs price market business
company companies products customer customers team teams project projects manager leader member members employee
office meeting report reports email phone calls document documents information knowledge research scientific scientist
studies theory theories experiment analysis methods evidence facts truth reason reasons logic argument ideas concept
concepts term terms definition examples case cases issue issues problems solution solutions questions answers explain
explained explanation describe described description discuss discussion consider considered compare compared
comparison difference different similar equal various general specific particular rare unusual normal complex easy
difficult impossible likely unlikely important necessary useful available unable obvious false wrong bad worse worst
higher highest lower lowest larger largest smaller smallest bigger greater greatest longer longest shorter newer older
recent modern ancient earlier later latest faster slower quickly slowly easily simply clearly exactly nearly almost
usually sometimes rarely already today tomorrow yesterday everywhere somewhere anywhere alone twice because although
however therefore thus hence moreover furthermore instead otherwise unless whereas whether either neither least fewer
another others I'm you're it's that's don't doesn't didn't can't couldn't won't wouldn't isn't aren't wasn't weren't
I've we've they've I'll you'll we'll they'll let's there's what's who's he's she's being having doing going coming
getting making taking giving using working looking finding telling asking trying calling feeling leaving putting
keeping letting beginning seeming helping showing hearing playing running moving living believing holding bringing
happening writing sitting standing losing paying including continuing setting learning changing leading understanding
watching following stopping creating speaking reading spending growing opening walking winning offering remembering
loving considering appearing buying waiting serving dying sending expecting building staying falling cutting reaching
killing remaining suggesting raising passing selling requiring reporting deciding pulling developing used worked
looked asked tried needed called felt became meant kept seemed helped showed played moved lived believed held happened
wrote provided sat lost paid met included continued learned changed led understood watched followed stopped created
spoke allowed added spent grew opened walked won offered remembered loved appeared bought waited served died sent
expected built stayed fell reached killed remained suggested raised passed sold required reported decided pulled
returned given taken known seen gone shown written become begun broken chosen drawn driven eaten fallen forgotten
grown hidden ridden risen spoken stolen thrown worn provide include continue allow understand create speak spend offer
buy die send expect suggest raise sell require hope break receive agree support hit catch choose identify define apply
improve reduce increase decrease manage handle share join connect select compute calculate estimate predict observe
control finish deliver update remove replace insert delete copy save load store print display design verify confirm
prove fail succeed enable disable avoid prevent protect attack defend fight win lose gain earn invest trade borrow
lend owe government law laws court police president minister party election vote policy public private nation national
international global local states county capital citizen citizens society social community culture cultural history
historical religion church god tax taxes economy economic industry industrial bank banks credit debt income growth
budget health doctor doctors patient patients hospital medicine medical disease treatment drug drugs blood heart brain
skin bone arm arms leg legs hands eyes ear ears mouth nose hair neck finger families parent parents son sons daughter
brother sister husband wife child baby boys girls woman women friends neighbor guest guests houses rooms kitchen
bathroom bedroom doors window windows wall walls floor roof garden roads bridge buildings cities village station
airport hotel restaurant shop schools university college library museum theater park beach bread rice meat chicken
beef pork egg eggs milk cheese butter fruit apple orange banana vegetable vegetables potato tomato onion sugar salt
pepper oil coffee tea wine beer juice breakfast lunch dinner meal cook cooking animals dogs cat cats horses cow sheep
pig birds trees flower flowers grass leaf leaves forest lake ocean mountains hill valley desert sky stars weather
storm cloud clouds temperature summer winter spring autumn planet space cars truck bus train bike gas electric
electricity energy machines tool tools metal iron steel silver glass plastic stone cloth cotton yellow brown gray pink
purple colors bright zero seven eight nine eleven twelve twenty thirty forty fifty sixty million billion third fourth
quarter percent art artist songs dance film movie movies television radio books novel poem poet stories author writer
reader newspaper magazine article chapter paragraph words letters languages English French German Spanish Chinese
Japanese American European African Asian Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February
March April June July August September October November December mathematics physics chemistry biology geometry
algebra equation formula theorem proof sets graph vector matrix probability average median variance distribution
sample random variable variables parameter parameters constant linear square circle triangle angle distance length
width height depth volume speed velocity acceleration mass pressure density wave signal noise frequency level levels
layer layers stage stages phase phases role roles steps status event events action actions changes condition
conditions rules limit limits range ranges option options choice choices feature features property properties element
elements component components module modules package packages version versions source target origin original copies
instance instances interface structure patterns format standard quality quantity amount total sum maximum minimum
quite rather really actually probably maybe certainly definitely especially particularly generally finally eventually
suddenly immediately directly currently previously recently originally below beside beyond inside outside within
without across along around throughout towards upon despite except per via myself yourself himself herself itself
ourselves themselves someone somebody anyone anybody everyone everybody nobody something anything everything things
stuff human humans individual
"""

_SUFFIXES = """
s es ed ing er ers est ly tion tions sion ment ments ness able ible al ial ic ical ity ive ous ful less ism ist
ize ized izing ise ance ence ant ent ary ory ship hood ward wards wise 's 't 're 've 'll 'd n't ation ations ating ated
ate ates ify ified ology ologist graphy metry scope phone logical ional ionally ingly edly
"""

_PREFIXES = """
un re in im dis non pre post anti auto bi co com con counter de em en ex extra fore hyper inter intra macro mega meta
micro mid mini mis mono multi neo out over para poly pro pseudo semi sub super syn tele trans tri ultra under uni up
"""


def _unique(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


WORDS: Final = _unique(_WORDS)
"""Whole words without a leading space, most common first."""

SUFFIXES: Final = _unique(_SUFFIXES)
"""Endings that continue a word."""

PREFIXES: Final = _unique(_PREFIXES)
"""Beginnings of words; used with and without a leading space."""
