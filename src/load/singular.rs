//! The singular of a list's key: under it a child job finds its item, and its reply is looked for (SPEC §3.3).
//!
//! The singular is a contract with workers, so the rules are our own: they depend on no version of another crate, and the
//! table in the tests pins them. Only the last word of a key changes (`bookSections`, `book_sections`); what has no plural
//! ending, or is no plural, stays. Where a rule is wrong for a word, the task's `itemKey` says better.

/// The singular of `key`: `sections` → `section`, `bookSections` → `bookSection`; `data` stays.
pub fn singular(key: &str) -> String {
    let start = last_word(key);
    let (before, word) = key.split_at(start);
    let (kept, ending) = singular_of_word(word);
    if kept + ending.len() == 0 {
        return key.to_owned();
    }
    let stem = &word[..kept];
    // `BOXES` → `BOX`, `PEOPLE` → `PERSON`; but `URLs` → `URL`.
    let upper = word.len() > 1 && !word.bytes().any(|byte| byte.is_ascii_lowercase());
    let ending = if upper { ending.to_ascii_uppercase() } else { ending.to_owned() };
    format!("{before}{stem}{ending}")
}

/// Where the last word of a key begins: after `_`, `-`, a space or a dot, or at a capital (`bookSections`, `HTTPHeaders`).
fn last_word(key: &str) -> usize {
    let bytes = key.as_bytes();
    for at in (0..bytes.len()).rev() {
        if matches!(bytes[at], b'_' | b'-' | b' ' | b'.' | b'/' | b':') {
            return at + 1;
        }
        if at == 0 || !bytes[at].is_ascii_uppercase() {
            continue;
        }
        let before = bytes[at - 1];
        // In `HTTPHeaders` the word begins at the last capital; in `URLs` that capital belongs to the abbreviation.
        let ends_abbreviation = &bytes[at + 1..] == b"s";
        let starts_word = before.is_ascii_uppercase() && !ends_abbreviation && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase);
        if before.is_ascii_lowercase() || before.is_ascii_digit() || starts_word {
            return at;
        }
    }
    0
}

/// How many bytes of `word` stay, and what follows them.
fn singular_of_word(word: &str) -> (usize, &'static str) {
    let unchanged = (word.len(), "");
    let lower = word.to_ascii_lowercase();
    if word.len() <= 2 {
        return unchanged;
    }
    // `URLs`, `IDs`, `CPUs`, `APIs`: an abbreviation and a small s.
    if let Some(abbreviation) = word.strip_suffix('s')
        && abbreviation.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    {
        return (abbreviation.len(), "");
    }
    if UNCHANGED.contains(&lower.as_str()) {
        return unchanged;
    }
    if let Some((plural, dropped, ending)) = IRREGULAR.iter().find(|(plural, ..)| *plural == lower) {
        return (plural.len() - dropped, ending);
    }
    if let Some((_, dropped, ending)) = ENDINGS.iter().find(|(plural, ..)| lower.ends_with(plural)) {
        return (word.len() - dropped, ending);
    }
    unchanged
}

/// Words in `s` that are no plurals, or whose singular is the same.
const UNCHANGED: &[&str] = &[
    "alias", "always", "analytics", "apparatus", "as", "athletics", "atlas", "aws", "axis", "bias", "cannabis", "canvas", "chaos", "chassis",
    "christmas", "cms", "corps", "cosmos", "css", "debris", "diabetes", "dns", "economics", "ethics", "ethos", "fps", "gallows", "gas", "genetics",
    "gps", "gymnastics", "has", "headquarters", "his", "https", "ios", "iris", "its", "kudos", "lens", "logistics", "mantis", "mathematics", "means",
    "metropolis", "nfs", "news", "overseas", "pancreas", "pants", "pelvis", "physics", "politics", "pos", "pyjamas", "scissors", "series", "shambles",
    "sms", "species", "tennis", "this", "tls", "was", "whereas", "yes",
];

/// Whole words: the plural, how many of its bytes go, what comes instead. All in lower case.
const IRREGULAR: &[(&str, usize, &str)] = &[
    // No s at the end.
    ("alumni", 1, "us"),
    ("automata", 1, "on"),
    ("bacteria", 1, "um"),
    ("bureaux", 1, ""),
    ("cacti", 1, "us"),
    ("chateaux", 1, ""),
    ("corpora", 3, "us"),
    ("criteria", 1, "on"),
    ("curricula", 1, "um"),
    ("dice", 2, "e"),
    ("errata", 1, "um"),
    ("feet", 3, "oot"),
    ("foci", 1, "us"),
    ("fungi", 1, "us"),
    ("geese", 4, "oose"),
    ("genera", 3, "us"),
    ("lice", 3, "ouse"),
    ("loci", 1, "us"),
    ("men", 2, "an"),
    ("mice", 3, "ouse"),
    ("nuclei", 1, "us"),
    ("oxen", 2, ""),
    ("phenomena", 1, "on"),
    ("plateaux", 1, ""),
    ("quanta", 1, "um"),
    ("radii", 1, "us"),
    ("schemata", 2, ""),
    ("stimuli", 1, "us"),
    ("strata", 1, "um"),
    ("syllabi", 1, "us"),
    ("tableaux", 1, ""),
    ("teeth", 4, "ooth"),
    // -men
    ("businessmen", 2, "an"),
    ("cameramen", 2, "an"),
    ("chairmen", 2, "an"),
    ("craftsmen", 2, "an"),
    ("firemen", 2, "an"),
    ("fishermen", 2, "an"),
    ("foremen", 2, "an"),
    ("freshmen", 2, "an"),
    ("gentlemen", 2, "an"),
    ("policemen", 2, "an"),
    ("postmen", 2, "an"),
    ("salesmen", 2, "an"),
    ("spokesmen", 2, "an"),
    ("sportsmen", 2, "an"),
    ("workmen", 2, "an"),
    // -ie
    ("aunties", 1, ""),
    ("birdies", 1, ""),
    ("bookies", 1, ""),
    ("brownies", 1, ""),
    ("calories", 1, ""),
    ("collies", 1, ""),
    ("cookies", 1, ""),
    ("foodies", 1, ""),
    ("freebies", 1, ""),
    ("genies", 1, ""),
    ("goalies", 1, ""),
    ("groupies", 1, ""),
    ("hippies", 1, ""),
    ("hoodies", 1, ""),
    ("indies", 1, ""),
    ("magpies", 1, ""),
    ("movies", 1, ""),
    ("neckties", 1, ""),
    ("newbies", 1, ""),
    ("prairies", 1, ""),
    ("rookies", 1, ""),
    ("selfies", 1, ""),
    ("smoothies", 1, ""),
    ("sorties", 1, ""),
    ("veggies", 1, ""),
    ("zombies", 1, ""),
    ("dies", 1, ""),
    ("lies", 1, ""),
    ("pies", 1, ""),
    ("ties", 1, ""),
    // -oe
    ("aloes", 1, ""),
    ("canoes", 1, ""),
    ("does", 1, ""),
    ("floes", 1, ""),
    ("foes", 1, ""),
    ("hoes", 1, ""),
    ("horseshoes", 1, ""),
    ("oboes", 1, ""),
    ("roes", 1, ""),
    ("shoes", 1, ""),
    ("snowshoes", 1, ""),
    ("tiptoes", 1, ""),
    ("toes", 1, ""),
    ("woes", 1, ""),
    // -f and -fe
    ("bookshelves", 3, "f"),
    ("calves", 3, "f"),
    ("dwarves", 3, "f"),
    ("elves", 3, "f"),
    ("halves", 3, "f"),
    ("hooves", 3, "f"),
    ("housewives", 3, "fe"),
    ("knives", 3, "fe"),
    ("leaves", 3, "f"),
    ("lives", 3, "fe"),
    ("loaves", 3, "f"),
    ("midwives", 3, "fe"),
    ("scarves", 3, "f"),
    ("selves", 3, "f"),
    ("sheaves", 3, "f"),
    ("shelves", 3, "f"),
    ("thieves", 3, "f"),
    ("wharves", 3, "f"),
    ("wives", 3, "fe"),
    ("wolves", 3, "f"),
    // -che
    ("aches", 1, ""),
    ("avalanches", 1, ""),
    ("backaches", 1, ""),
    ("caches", 1, ""),
    ("headaches", 1, ""),
    ("moustaches", 1, ""),
    ("mustaches", 1, ""),
    ("niches", 1, ""),
    ("psyches", 1, ""),
    ("toothaches", 1, ""),
    // -sis
    ("antitheses", 2, "is"),
    ("axes", 2, "is"),
    ("catharses", 2, "is"),
    ("crises", 2, "is"),
    ("diagnoses", 2, "is"),
    ("emphases", 2, "is"),
    ("geneses", 2, "is"),
    ("hypotheses", 2, "is"),
    ("metamorphoses", 2, "is"),
    ("nemeses", 2, "is"),
    ("neuroses", 2, "is"),
    ("oases", 2, "is"),
    ("parentheses", 2, "is"),
    ("prognoses", 2, "is"),
    ("prostheses", 2, "is"),
    ("psychoses", 2, "is"),
    ("syntheses", 2, "is"),
    ("synopses", 2, "is"),
    ("theses", 2, "is"),
    // -as, -is, -ns, -z and the like, with -es
    ("atlases", 2, ""),
    ("biases", 2, ""),
    ("blitzes", 2, ""),
    ("canvases", 2, ""),
    ("gases", 2, ""),
    ("irises", 2, ""),
    ("lenses", 2, ""),
    ("mantises", 2, ""),
    ("metropolises", 2, ""),
    ("quizzes", 3, ""),
    ("topazes", 2, ""),
    ("waltzes", 2, ""),
    ("whizzes", 3, ""),
    ("yeses", 2, ""),
    // -xe, -sse
    ("crevasses", 1, ""),
    ("finesses", 1, ""),
    ("impasses", 1, ""),
    ("mousses", 1, ""),
    ("pickaxes", 1, ""),
    // -use: the other words in -uses are of -us
    ("abuses", 1, ""),
    ("disuses", 1, ""),
    ("excuses", 1, ""),
    ("fuses", 1, ""),
    ("hypotenuses", 1, ""),
    ("misuses", 1, ""),
    ("muses", 1, ""),
    ("recluses", 1, ""),
    ("refuses", 1, ""),
    ("reuses", 1, ""),
    ("ruses", 1, ""),
    ("uses", 1, ""),
    // -u: the other words in -us are no plurals
    ("bayous", 1, ""),
    ("bureaus", 1, ""),
    ("cpus", 1, ""),
    ("emus", 1, ""),
    ("gnus", 1, ""),
    ("gpus", 1, ""),
    ("gurus", 1, ""),
    ("haikus", 1, ""),
    ("menus", 1, ""),
    ("milieus", 1, ""),
    ("npus", 1, ""),
    ("plateaus", 1, ""),
    ("skus", 1, ""),
    ("submenus", 1, ""),
    ("tpus", 1, ""),
    ("vcpus", 1, ""),
];

/// Endings, the first that fits: the ending, how many bytes go, what comes instead.
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
    // `address`, `process`; `status`, `virus`; `basis`, `analysis`: no plurals.
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
        // The specification's own.
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
        // No plurals.
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
        // Plain s.
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
            assert_eq!(singular(plural), *expected, "of {plural:?}");
        }
    }

    #[test]
    fn a_singular_that_has_no_plural_ending_stays() {
        for (_, word) in PAIRS {
            assert_eq!(singular(word), *word, "of {word:?}");
        }
    }

    #[test]
    fn the_tables_are_sound() {
        for (plural, dropped, _) in IRREGULAR {
            assert!(*dropped <= plural.len() && plural.chars().all(|c| c.is_ascii_lowercase()), "{plural:?}");
            assert_eq!(IRREGULAR.iter().filter(|(other, ..)| other == plural).count(), 1, "{plural:?} stands twice");
            assert!(!UNCHANGED.contains(plural), "{plural:?} stands in both tables");
        }
    }
}
