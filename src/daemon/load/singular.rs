//! Forms the singular of a list's key: the default of a task's `itemKey`
//! (docs/reference/workflow-data.md).
//!
//! The singular is a contract with workers, so the rules must not change with the version of some
//! crate: they are written out here, and the table in the tests pins them. Only the last word of a
//! key changes (`bookSections`, `book_sections`). A word that is not a plural stays the same. Where
//! a rule is wrong for a word, the task's `itemKey` overrides it.

/// Returns the singular of `key`: `sections` → `section`, `bookSections` → `bookSection`. Returns a
/// key that is not a plural unchanged: `data`.
pub(crate) fn singularize(key: &str) -> String {
    let start = last_word_start(key);
    let (prefix, word) = key.split_at(start);
    let (stem_bytes, ending) = singularize_word(word);
    // The last word is empty: the key ends with a separator, or is empty itself.
    if stem_bytes + ending.len() == 0 {
        return key.to_owned();
    }
    let stem = &word[..stem_bytes];
    // `BOXES` → `BOX`, `PEOPLE` → `PERSON`; but `URLs` → `URL`.
    let is_upper_case = word.len() > 1 && !word.bytes().any(|byte| byte.is_ascii_lowercase());
    let ending = if is_upper_case { ending.to_ascii_uppercase() } else { ending.to_owned() };
    format!("{prefix}{stem}{ending}")
}

/// Returns the byte index at which the last word of a key begins: after one of `_`, `-`, ` `, `.`,
/// `/` and `:`, or at a capital (`bookSections`, `HTTPHeaders`).
fn last_word_start(key: &str) -> usize {
    let bytes = key.as_bytes();
    for index in (0..bytes.len()).rev() {
        if matches!(bytes[index], b'_' | b'-' | b' ' | b'.' | b'/' | b':') {
            return index + 1;
        }
        if index == 0 || !bytes[index].is_ascii_uppercase() {
            continue;
        }
        let previous = bytes[index - 1];
        // In `HTTPHeaders` the word begins at the last capital; in `URLs` that capital belongs to
        // the abbreviation.
        let ends_abbreviation = &bytes[index + 1..] == b"s";
        let starts_word = previous.is_ascii_uppercase()
            && !ends_abbreviation
            && bytes.get(index + 1).is_some_and(u8::is_ascii_lowercase);
        if previous.is_ascii_lowercase() || previous.is_ascii_digit() || starts_word {
            return index;
        }
    }
    0
}

/// Returns how many leading bytes of `word` its singular keeps, and the ending to append to them.
fn singularize_word(word: &str) -> (usize, &'static str) {
    let unchanged = (word.len(), "");
    let lower = word.to_ascii_lowercase();
    if word.len() <= 2 {
        return unchanged;
    }
    // `URLs`, `IDs`, `CPUs`, `APIs`: an abbreviation and a lower-case s.
    if let Some(abbreviation) = word.strip_suffix('s')
        && abbreviation.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    {
        return (abbreviation.len(), "");
    }
    if contains_word(UNCHANGED, &lower) {
        return unchanged;
    }
    if let Some((_, removed_bytes, ending)) =
        IRREGULAR.iter().find(|(plurals, ..)| contains_word(plurals, &lower))
    {
        return (word.len() - removed_bytes, ending);
    }
    if let Some((_, removed_bytes, ending)) =
        ENDINGS.iter().find(|(plural, ..)| lower.ends_with(plural))
    {
        return (word.len() - removed_bytes, ending);
    }
    unchanged
}

/// Returns whether a list of words, separated by spaces, contains this word.
fn contains_word(words: &str, word: &str) -> bool {
    words.split(' ').any(|listed_word| listed_word == word)
}

/// Words in lower case that end in `s` but are not plurals, or whose singular is the same.
const UNCHANGED: &str = "alias always analytics apparatus as athletics atlas aws axis bias \
                         cannabis canvas chaos chassis christmas cms corps cosmos css debris \
                         diabetes dns economics ethics ethos fps gallows gas genetics gps \
                         gymnastics has headquarters his https ios iris its kudos lens logistics \
                         mantis mathematics means metropolis nfs news overseas pancreas pants \
                         pelvis physics politics pos pyjamas scissors series shambles sms \
                         species tennis this tls was whereas yes";

/// Irregular plurals in lower case, separated by spaces. Each row has the plurals, how many bytes
/// are removed from their ends, and the ending to append.
const IRREGULAR: &[(&str, usize, &str)] = &[
    // Plurals that do not end in -s
    ("alumni cacti foci fungi loci nuclei radii stimuli syllabi", 1, "us"),
    ("automata criteria phenomena", 1, "on"),
    ("bacteria curricula errata quanta strata", 1, "um"),
    ("bureaux chateaux plateaux tableaux", 1, ""),
    ("corpora genera", 3, "us"),
    ("dice", 2, "e"),
    ("feet", 3, "oot"),
    ("geese", 4, "oose"),
    ("lice mice", 3, "ouse"),
    ("men", 2, "an"),
    ("oxen schemata", 2, ""),
    ("teeth", 4, "ooth"),
    // -men
    (
        "businessmen cameramen chairmen craftsmen firemen fishermen foremen freshmen gentlemen \
         policemen postmen salesmen spokesmen sportsmen workmen",
        2,
        "an",
    ),
    // -ie
    (
        "aunties birdies bookies brownies calories collies cookies dies foodies freebies genies \
         goalies groupies hippies hoodies indies lies magpies movies neckties newbies pies \
         prairies rookies selfies smoothies sorties ties veggies zombies",
        1,
        "",
    ),
    // -oe
    (
        "aloes canoes does floes foes hoes horseshoes oboes roes shoes snowshoes tiptoes toes woes",
        1,
        "",
    ),
    // -f and -fe
    (
        "bookshelves calves dwarves elves halves hooves leaves loaves scarves selves sheaves \
         shelves thieves wharves wolves",
        3,
        "f",
    ),
    ("housewives knives lives midwives wives", 3, "fe"),
    // -che
    (
        "aches avalanches backaches caches headaches moustaches mustaches niches psyches \
         toothaches",
        1,
        "",
    ),
    // -sis
    (
        "antitheses axes catharses crises diagnoses emphases geneses hypotheses metamorphoses \
         nemeses neuroses oases parentheses prognoses prostheses psychoses synopses syntheses \
         theses",
        2,
        "is",
    ),
    // -as, -is, -ns, -z and the like, with -es
    (
        "atlases biases blitzes canvases gases irises lenses mantises metropolises topazes \
         waltzes yeses",
        2,
        "",
    ),
    ("quizzes whizzes", 3, ""),
    // -xe, -sse
    ("crevasses finesses impasses mousses pickaxes", 1, ""),
    // -use; for other words in -uses, the singular ends in -us
    (
        "abuses disuses excuses fuses hypotenuses misuses muses recluses refuses reuses ruses uses",
        1,
        "",
    ),
    // -u; other words in -us are not plurals
    (
        "bayous bureaus cpus emus gnus gpus gurus haikus menus milieus npus plateaus skus \
         submenus tpus vcpus",
        1,
        "",
    ),
];

/// Regular plurals. Each row has the ending of the plural, how many bytes are removed, and the
/// ending to append. The first row that matches counts.
const ENDINGS: &[(&str, usize, &str)] = &[
    ("people", 4, "rson"),
    ("children", 3, ""),
    ("women", 2, "an"),
    ("indices", 4, "ex"),
    ("vertices", 4, "ex"),
    ("vortices", 4, "ex"),
    ("cortices", 4, "ex"),
    ("codices", 4, "ex"),
    ("matrices", 4, "ix"),
    ("appendices", 4, "ix"),
    ("helices", 4, "ix"),
    ("lyses", 2, "is"),
    // Not plurals: `address`, `process`; `status`, `virus`; `basis`, `analysis`.
    ("ss", 0, ""),
    ("us", 0, ""),
    ("sis", 0, ""),
    ("ies", 3, "y"),
    ("oes", 2, ""),
    ("sses", 2, ""),
    ("shes", 2, ""),
    ("ches", 2, ""),
    ("xes", 2, ""),
    ("zzes", 2, ""),
    ("aliases", 2, ""),
    // `causes`, `houses`; but `statuses`, `buses`.
    ("auses", 1, ""),
    ("ouses", 1, ""),
    ("uses", 2, ""),
    ("s", 1, ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract. Adding a row is fine; changing one breaks workers.
    const PAIRS: &[(&str, &str)] = &[
        // The specification's own examples.
        ("sections", "section"),
        ("bookSections", "bookSection"),
        ("entries", "entry"),
        ("boxes", "box"),
        ("indices", "index"),
        ("address", "address"),
        ("data", "data"),
        ("subid_list", "subid_list"),
        ("elements", "element"),
        ("items", "item"),
        // Not plurals.
        ("status", "status"),
        ("bus", "bus"),
        ("news", "news"),
        ("series", "series"),
        ("species", "species"),
        ("analysis", "analysis"),
        ("basis", "basis"),
        ("axis", "axis"),
        ("media", "media"),
        ("metadata", "metadata"),
        ("process", "process"),
        ("canvas", "canvas"),
        ("alias", "alias"),
        ("lens", "lens"),
        ("item", "item"),
        ("list", "list"),
        ("sheep", "sheep"),
        ("s", "s"),
        ("os", "os"),
        ("", ""),
        ("_", "_"),
        ("items2", "items2"),
        // Plurals in -s.
        ("pages", "page"),
        ("files", "file"),
        ("images", "image"),
        ("ids", "id"),
        ("urls", "url"),
        ("uris", "uri"),
        ("apis", "api"),
        ("keys", "key"),
        ("days", "day"),
        ("videos", "video"),
        ("photos", "photo"),
        ("schemas", "schema"),
        ("areas", "area"),
        ("metrics", "metric"),
        ("topics", "topic"),
        ("settings", "setting"),
        ("services", "service"),
        ("prices", "price"),
        ("slices", "slice"),
        ("responses", "response"),
        ("databases", "database"),
        ("purchases", "purchase"),
        ("phrases", "phrase"),
        ("bases", "base"),
        ("cases", "case"),
        ("courses", "course"),
        ("licenses", "license"),
        ("exercises", "exercise"),
        ("sizes", "size"),
        ("archives", "archive"),
        ("curves", "curve"),
        ("movies", "movie"),
        ("cookies", "cookie"),
        ("caches", "cache"),
        ("shoes", "shoe"),
        ("causes", "cause"),
        ("houses", "house"),
        ("warehouses", "warehouse"),
        ("uses", "use"),
        ("menus", "menu"),
        ("cpus", "cpu"),
        // -es
        ("addresses", "address"),
        ("classes", "class"),
        ("processes", "process"),
        ("matches", "match"),
        ("batches", "batch"),
        ("branches", "branch"),
        ("dishes", "dish"),
        ("hashes", "hash"),
        ("indexes", "index"),
        ("taxes", "tax"),
        ("suffixes", "suffix"),
        ("buzzes", "buzz"),
        ("quizzes", "quiz"),
        ("heroes", "hero"),
        ("potatoes", "potato"),
        ("statuses", "status"),
        ("buses", "bus"),
        ("viruses", "virus"),
        ("bonuses", "bonus"),
        ("aliases", "alias"),
        ("gases", "gas"),
        ("lenses", "lens"),
        ("canvases", "canvas"),
        // -ies, -ves
        ("categories", "category"),
        ("queries", "query"),
        ("companies", "company"),
        ("leaves", "leaf"),
        ("shelves", "shelf"),
        ("knives", "knife"),
        ("lives", "life"),
        ("moves", "move"),
        // Greek, Latin and old English.
        ("analyses", "analysis"),
        ("hypotheses", "hypothesis"),
        ("crises", "crisis"),
        ("axes", "axis"),
        ("vertices", "vertex"),
        ("matrices", "matrix"),
        ("appendices", "appendix"),
        ("criteria", "criterion"),
        ("people", "person"),
        ("children", "child"),
        ("grandchildren", "grandchild"),
        ("men", "man"),
        ("women", "woman"),
        ("mice", "mouse"),
        ("geese", "goose"),
        ("feet", "foot"),
        ("teeth", "tooth"),
        ("dice", "die"),
        // Several words, and capitals.
        ("book_sections", "book_section"),
        ("book-sections", "book-section"),
        ("bookEntries", "bookEntry"),
        ("sub_indices", "sub_index"),
        ("people_ids", "people_id"),
        ("addressBook", "addressBook"),
        ("ITEMS", "ITEM"),
        ("BOOK_BOXES", "BOOK_BOX"),
        ("PEOPLE", "PERSON"),
        ("Sections", "Section"),
        ("People", "Person"),
        ("Boxes", "Box"),
        ("URLs", "URL"),
        ("userIDs", "userID"),
        ("imageURLs", "imageURL"),
        ("APIs", "API"),
        ("HTTPHeaders", "HTTPHeader"),
        ("page2Items", "page2Item"),
        ("números", "número"),
        ("häuser", "häuser"),
    ];

    #[test]
    fn the_singular_of_each_word_is_pinned() {
        for (plural, expected) in PAIRS {
            assert_eq!(singularize(plural), *expected, "of {plural:?}");
        }
    }

    #[test]
    fn a_singular_that_has_no_plural_ending_stays() {
        for (_, word) in PAIRS {
            assert_eq!(singularize(word), *word, "of {word:?}");
        }
    }

    #[test]
    fn the_tables_have_each_word_once() {
        let mut words: Vec<&str> = UNCHANGED.split(' ').collect();
        for (plurals, removed_bytes, _) in IRREGULAR {
            assert!(plurals.split(' ').all(|plural| plural.len() >= *removed_bytes), "{plurals:?}");
            words.extend(plurals.split(' '));
        }
        for (index, word) in words.iter().enumerate() {
            assert!(
                !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()),
                "{word:?}"
            );
            assert!(!words[..index].contains(word), "{word:?} is listed twice");
        }
    }
}
