// The status page: looks at /api/state every two seconds and shows it, the worst first. Decides nothing, sends nothing.

import {History} from "./history.js";
import {Rows, count, mark, name, number, part_of, plot, say, sentence, share, tone_of, word} from "./rows.js";

const EVERY_MS = 2000, PATIENCE_MS = 5000, FEW_LINES = 12, HEARD_OF_S_MAX = 10;
const KINDS = ["would_refuse", "would_admit", "would_wait", "would_not_wait", "would_reorder"];
const at = id => document.getElementById(id);
const tables = {
  lines: new Rows("lines", [name, word, share, plot, number, sentence, number, number, word]),
  engines: new Rows("engines", [name, sentence, number, share, share, share, share, number, number, number, word, word]),
  parts: new Rows("parts", [name, sentence, word, word, share, number, number]),
  outcomes: new Rows("outcomes", [name, number, number, plot]),
  refusals: new Rows("refusals", [name, number, number, word, plot]),
  shadow: new Rows("shadow", [name, word, word, number, ...KINDS.map(() => number), share]),
};
const history = new History();
let latest = null, isPaused = false, isLooking = false, timer = 0;

const seconds = value => `${value.toFixed(1)} s`;
const by_name = new Intl.Collator("en", {numeric: true}).compare;
const sum = (list, of) => list.reduce((all, each) => all + of(each), 0);
// Orders by the first number that differs, the larger first, then by name.
const worst_first = (numbers, named) => (a, b) => {
  const [first, second] = [numbers(a), numbers(b)], differs = first.findIndex((each, i) => each !== second[i]);
  return differs < 0 ? by_name(named(a), named(b)) : second[differs] - first[differs];
};
const is_asked_for = (...names) => {
  const asked = at("filter").value.trim().toLowerCase();
  return names.some(each => each.toLowerCase().includes(asked));
};

// ── lines ──

// What of an engine's budgets a line needs, and where none is left of it: facts of now, not what the gate decided.
const NEEDS = {short: [["short_prefill_tokens", "short prefill"], ["slots", "slots"], ["kv_tokens", "KV"]],
  long: [["long_prefills", "long prefills"], ["slots", "slots"], ["kv_tokens", "KV"]]};
const used_of = engine => ({long_prefills: engine.used.long_prefills, short_prefill_tokens: engine.used.prefill_tokens.short,
  slots: engine.used.slots, kv_tokens: engine.used.kv_reserved_tokens});
function full_for(length_class, engines) {
  const open = engines.filter(engine => engine.up && engine.weight > 0);
  if (!open.length) return {words: "no engine takes requests", tone: "bad"};
  const full = NEEDS[length_class].map(([budget, words]) =>
    [words, open.filter(engine => used_of(engine)[budget] >= engine.budgets[budget]).length]).filter(([, many]) => many);
  const where = many => open.length === 1 ? "" : many === open.length ? " on all" : ` on ${many} of ${open.length}`;
  return full.length ? {words: full.map(([words, many]) => words + where(many)).join(", "), tone: ""} : {words: "no budget", tone: "dim"};
}
function lines_of(state) {
  const found = [];
  for (const [pool, each] of Object.entries(state.pools)) {
    const running = new Map();
    for (const engine of Object.values(each.engines)) for (const one of engine.used.running) {
      const key = `${one.service_class} ${one.length_class}`;
      running.set(key, (running.get(key) ?? 0) + one.requests);
    }
    for (const line of each.lines) {
      const named = `${line.service_class} ${line.length_class}`;
      const course = history.of("oldest_age_s", `${named} ${pool}`).points, limit_s = line.wait_s_max;
      found.push({...line, pool, named, course, peak_s: Math.max(0, ...course), running: running.get(named) ?? 0,
        part: part_of(line.oldest_age_s, limit_s), full: full_for(line.length_class, Object.values(each.engines))});
    }
  }
  return found.sort(worst_first(line => [line.part, line.requests, line.running, line.peak_s], line => `${line.named} ${line.pool}`));
}
const age_words = line => seconds(line.oldest_age_s) + (line.wait_s_max === null ? "" : ` of ${line.wait_s_max} s`);

function show_lines(lines) {
  const asked = lines.filter(line => is_asked_for(line.service_class, line.pool));
  const waiting = asked.filter(line => line.requests), shown = at("idle").checked ? asked : waiting;
  tables.lines.show(shown.map(line => [`${line.pool}/${line.named}`, [line.service_class, line.length_class,
    {used: line.oldest_age_s, cap: line.wait_s_max, words: age_words(line)},
    {points: line.course, top: line.wait_s_max, tone: tone_of(part_of(line.peak_s, line.wait_s_max)),
      words: line.peak_s ? `to ${seconds(line.peak_s)}` : "none"},
    count(line.requests), line.requests ? line.full : "", count(line.prompt_tokens), count(line.running), line.pool]]), lines.length);
  const hidden = asked.length - shown.length;
  say(at("n-lines"), `${waiting.length} of ${asked.length} lines wait` + (hidden ? `; ${hidden} idle are not shown. ` : ". ") +
    "What waits gets an engine when one has room, or a refusal at its limit. " +
    "Where no budget is full, a bound of the tenant’s own (running_max) or the turn of others holds it.");
}

// ── engines ──

function engines_of(state) {
  const found = [];
  for (const [pool, each] of Object.entries(state.pools)) for (const [named, engine] of Object.entries(each.engines)) {
    const used = engine.used, cap = engine.budgets;
    const budgets = [[used.long_prefills, cap.long_prefills], [used.prefill_tokens.short, cap.short_prefill_tokens],
      [used.slots, cap.slots], [used.kv_reserved_tokens, cap.kv_tokens]];
    const trouble = !engine.up ? 4 : engine.problem ? 3 : engine.dividing?.whole_because ? 2 : engine.weight === 0 ? 1 : 0;
    found.push({...engine, pool, named, budgets, trouble, fullest: Math.max(...budgets.map(each => part_of(...each))),
      running: sum(used.running, one => one.requests)});
  }
  return found.sort(worst_first(engine => [engine.trouble, engine.fullest, engine.running], engine => engine.named));
}
function standing(engine) {
  const state = engine.problem ? `${engine.state}: ${engine.problem}` : engine.state;
  const words = engine.weight === 0 ? `${state}, drained` : engine.weight === 1 ? state : `${state}, weight ${engine.weight}`;
  return {words, tone: !engine.up ? "bad" : engine.problem || !engine.weight ? "warn" : "good"};
}
function heard_of({age_s}) {
  if (age_s === null) return {words: "never", tone: "dim"};
  return {words: `${seconds(age_s)} ago`, tone: age_s > HEARD_OF_S_MAX ? "warn" : ""};
}
function show_engines(engines) {
  const asked = engines.filter(engine => is_asked_for(engine.named, engine.pool));
  tables.engines.show(asked.map(engine => {
    const says = engine.says, kv = says.kv_usage === null ? "–" : `${(100 * says.kv_usage).toFixed(0)} %`;
    return [`${engine.pool}/${engine.named}`, [engine.named, standing(engine), count(engine.running),
      ...engine.budgets.map(([used, cap]) => ({used, cap})), `${says.running ?? "–"}, ${says.waiting ?? "–"}`, kv,
      heard_of(says), engine.priority_effective ? "effective" : "not used", engine.pool]];
  }), engines.length);
  const troubled = asked.filter(engine => engine.trouble).length;
  say(at("n-engines"), `${asked.length} of ${engines.length} engines; ${troubled || "none"} with something to look at.`);
}

// ── long prompts in parts ──

function whole_words(how) {
  const again = how.tries_again_in_s === null ? "" : `, tried again in ${how.tries_again_in_s.toFixed(0)} s`;
  const since = how.whole_for_s === null ? "" : ` for ${how.whole_for_s.toFixed(0)} s`;
  return `whole: ${how.whole_because}${since}${again}`;
}
function show_parts(engines) {
  const dividing = engines.filter(engine => engine.dividing), rows = [];
  for (const {named, pool, dividing: how} of dividing.filter(engine => is_asked_for(engine.named, engine.pool))) {
    const words = how.whole_because ? {words: whole_words(how), tone: "warn"} : {words: how.mode, tone: "good"};
    if (how.whole_because && !how.prompts.length) rows.push([`${named}/`, [named, words, "", "", {used: 0, words: ""}, "", ""]]);
    how.prompts.forEach((one, i) => rows.push([`${named}/${i}`, [named, words, one.service_class, `${one.part} of ${one.parts}`,
      {used: one.done_tokens, cap: one.prompt_tokens}, one.held_for_s === null ? "" : seconds(one.held_for_s),
      count(one.recalls)]]));
  }
  at("s-parts").hidden = dividing.length === 0;
  tables.parts.show(rows, dividing.length);
  const whole = dividing.filter(engine => engine.dividing.whole_because).length;
  const under_way = sum(dividing, engine => engine.dividing.prompts.length);
  say(at("n-parts"), `${under_way} under way; ${dividing.length - whole} of ${dividing.length} engines take them in parts.`);
}

// ── ends ──

function ends_of(kind, totals) {
  return Object.entries(totals[kind]).map(([named, all]) => ({named, all, ...history.of(kind, named)}));
}
function show_ends(kind, ends) {
  tables[kind].show(ends.map(({named, all, points, sum: grown, most}) => {
    const rates = points.slice(0, -1).map(each => each / history.bucket_s);  // the last bucket has not ended
    const tone = named === "completed" ? "good" : grown > 0 ? "warn" : "dim";
    const course = {points: rates, words: `${(rates.at(-1) ?? 0).toFixed(1)} now`};
    const figures = [{words: named, tone}, count(all), count(grown)];
    return [named, kind === "refusals" ? [...figures, most, course] : [...figures, course]];
  }), ends.length);
}

// ── the shadow policy ──

const differing = line => sum(KINDS, kind => line[kind]);
const percent = (part, all) => all ? `${(100 * part / all).toFixed(1)} %` : "–";

function show_shadow(seen) {
  at("s-shadow").hidden = at("tile-shadow").hidden = !seen;
  if (!seen) return;
  const compared = sum(seen.lines, line => line.compared), differ = sum(seen.lines, differing);
  const policy = seen.policy && `${seen.policy.name} (${seen.policy.sha256.slice(0, 8)})`;
  say(at("t-shadow"), seen.failed ? "failed" : percent(differ, compared), seen.failed ? "bad" : "");
  say(at("d-shadow"), seen.failed ? "and is off" : seen.policy.name);
  say(at("n-shadow"), seen.failed ? "It has failed and is off; the log says why."
    : `${policy}: ${count(differ)} of ${count(compared)} requests otherwise. In words: gateway shadow report.`);
  const lines = seen.lines.filter(line => is_asked_for(line.service_class, line.pool))
    .sort(worst_first(line => [differing(line) / line.compared, line.compared], line => `${line.service_class} ${line.length_class}`));
  tables.shadow.show(lines.map(line => [`${line.pool}/${line.service_class} ${line.length_class}`, [line.service_class,
    line.length_class, line.pool, count(line.compared),
    ...KINDS.map(kind => ({words: count(line[kind]), tone: line[kind] ? "warn" : "dim"})),
    {used: differing(line), cap: line.compared, words: percent(differing(line), line.compared)}]]), seen.lines.length);
}

// ── in short ──

function show_tiles(lines, engines, refusals) {
  const waiting = lines.filter(line => line.requests), worst = waiting[0], up = engines.filter(engine => engine.up).length;
  say(at("t-waiting"), count(sum(waiting, line => line.requests)));
  say(at("d-waiting"), `in ${waiting.length} of ${lines.length} lines, ${count(sum(waiting, line => line.prompt_tokens))} prompt tokens`);
  say(at("t-oldest"), worst ? `${(100 * worst.part).toFixed(0)} %` : "–", worst ? tone_of(worst.part) : "");
  say(at("d-oldest"), worst ? `${worst.named}: ${age_words(worst)}` : "nothing waits");
  say(at("t-engines"), `${up} of ${engines.length}`, up < engines.length ? "bad" : "");
  const words = [[engines.length - up, "down"], [engines.filter(engine => engine.weight === 0).length, "drained"],
    [engines.filter(engine => engine.up && engine.problem).length, "with a problem"]];
  say(at("d-engines"), words.filter(([many]) => many).map(([many, what]) => `${many} ${what}`).join(", ") || "all are well");
  const slots = engines.map(engine => engine.budgets[2]).filter(([, cap]) => cap !== undefined);
  say(at("t-running"), count(sum(engines, engine => engine.running)));
  say(at("d-running"), slots.length ? `slots: ${count(sum(slots, ([used]) => used))} of ${count(sum(slots, ([, cap]) => cap))}`
    : "no cap on slots");
  const refused = sum(refusals, end => end.sum), most = refusals[0];
  say(at("t-refused"), count(refused), refused ? "warn" : "");
  say(at("d-refused"), refused ? `most: ${most.named}, ${count(most.sum)} (${most.most})` : "none");
  say_in_short(waiting.filter(line => line.part > 0.8).length, engines.length - up);
}
// Read aloud when it changes: so it has counts alone, no ages.
function say_in_short(late, down) {
  const words = [[late, late === 1 ? "line is over 0.8 of its limit" : "lines are over 0.8 of their limit"],
    [down, down === 1 ? "engine is down" : "engines are down"]].filter(([many]) => many).map(([many, what]) => `${many} ${what}`);
  say(at("in-short"), words.length ? `${words.join("; ")}.` : "No line is near its limit, and all engines are up.", words.length ? "bad" : "good");
}

function show(state) {
  const lines = lines_of(state), engines = engines_of(state);
  const refusals = ends_of("refusals", state.totals).sort(worst_first(end => [end.sum, end.all], end => end.named));
  say(at("policy"), `policy ${state.policy.name} (${state.policy.sha256.slice(0, 8)}) · version ${state.version}`);
  say(at("stage"), state.ready ? state.stage : `${state.stage}, not ready`, state.ready ? "good" : "bad");
  show_tiles(lines, engines, refusals);
  show_lines(lines);
  show_engines(engines);
  show_parts(engines);
  show_ends("outcomes", ends_of("outcomes", state.totals));
  show_ends("refusals", refusals);
  show_shadow(state.shadow);
  at("as-of").dataset.now = state.now;
}

// ── looking ──

async function ask(path) {
  const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS)});
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}
const ask_history = () => ask(`/api/history?since=${history.last_at}`);
async function ask_both() {
  if (!history.take(await ask_history())) history.take(await ask_history());
  return ask("/api/state?promises=off");
}
async function look() {
  clearTimeout(timer);
  if (isLooking) return;
  isLooking = true;
  const state = await ask_both().catch(() => null);
  isLooking = false;
  if (isPaused) return;
  timer = setTimeout(look, EVERY_MS);
  is_stale(!state);
  if (state) take(state);
}
function take(state) {
  if (!latest) at("idle").checked = lines_of(state).length <= FEW_LINES;
  latest = state;
  show(state);
  say(at("as-of"), new Date().toLocaleTimeString());
}
function is_stale(stale) {
  say(at("stale"), stale ? "The gateway does not answer; what is shown is old." : "");
  document.body.classList.toggle("is-stale", stale);
}
function pause() {
  isPaused = !isPaused;
  at("pause").setAttribute("aria-pressed", isPaused);
  if (isPaused) clearTimeout(timer); else look();
}

at("pause").addEventListener("click", pause);
at("choice").addEventListener("submit", event => event.preventDefault());
at("choice").addEventListener("input", () => latest && show(latest));
look();
