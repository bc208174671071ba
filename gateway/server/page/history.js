// What the gateway kept of the last minutes: asked for as a whole at first, then only what is new of it.

const KINDS = {outcomes: ["outcome"], refusals: ["reason"], oldest_age_s: ["service_class", "length_class", "pool"]};
const key_of = (kind, each) => (KINDS[kind] ?? []).map(member => each[member]).join(" ");

export class History {
  constructor() { this.forget(); }

  forget() {
    this.began_at = null;
    this.last_at = 0;
    this.series = Object.fromEntries(Object.keys(KINDS).map(kind => [kind, []]));
  }

  // Takes in an answer of /api/history since `last_at`. False: it is of a gateway that started anew; ask once more.
  take(answer) {
    const is_new = this.began_at !== answer.began_at;
    if (is_new && this.last_at) { this.forget(); return false; }
    Object.assign(this, {began_at: answer.began_at, last_at: answer.last_at, bucket_s: answer.bucket_s, buckets: answer.buckets});
    const oldest = this.last_at - this.bucket_s * (this.buckets - 1);
    for (const kind of Object.keys(KINDS)) {
      const kept = new Map(this.series[kind].map(each => [this.name(kind, each), each]));
      for (const each of answer[kind]) {
        const known = kept.get(this.name(kind, each)) ?? {...each, values: new Map()};
        for (const [at, value] of each.values) known.values.set(at, value);
        kept.set(this.name(kind, each), known);
      }
      for (const each of kept.values()) for (const at of each.values.keys()) if (at < oldest) each.values.delete(at);
      this.series[kind] = [...kept.values()].filter(each => each.values.size);
    }
    return true;
  }
  name(kind, each) { return `${each.service_class} ${key_of(kind, each)}`; }

  // The course of what is named so, oldest first, over all classes: {points, sum, most: the class with most of it}.
  of(kind, named) {
    const points = new Array(this.buckets ?? 0).fill(0), by_class = new Map();
    let sum = 0;
    for (const each of this.series[kind]) if (key_of(kind, each) === named) for (const [at, value] of each.values) {
      points[points.length - 1 - (this.last_at - at) / this.bucket_s] += value;
      sum += value;
      by_class.set(each.service_class, (by_class.get(each.service_class) ?? 0) + value);
    }
    const [most] = [...by_class].sort((a, b) => b[1] - a[1])[0] ?? [""];
    return {points, sum, most};
  }
}
