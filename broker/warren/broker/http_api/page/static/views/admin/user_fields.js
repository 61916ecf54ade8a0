/** Fields of a user's password and tags, and what the API takes for them. */
import { wordsOf } from "../../components/form.js";
import { api, path } from "../../core/api.js";

const TAGS = [["administrator", "Administrator"], ["monitoring", "Monitoring"], ["policymaker", "Policymaker"], ["management", "Management"], ["impersonator", "Impersonator"]];
const KEEP = ["keep", "stays as it is"];
const KINDS = [["password", "is set"], ["hash", "is set by its hash"], ["none", "is none: the user cannot log in with one"]];

export function passwordFields({ keep = false }) {
  const kinds = keep ? [KEEP, ...KINDS] : KINDS;
  return [
    { name: "kind", label: "Password", type: "select", value: kinds[0][0], options: kinds },
    { name: "password", label: "New password", type: "password", required: true, shown: ({ kind }) => kind === "password" },
    { name: "repeated", label: "Repeat it", type: "password", required: true, shown: ({ kind }) => kind === "password" },
    { name: "hash", label: "Hash", required: true, shown: ({ kind }) => kind === "hash", help: "Salted SHA-256 as base64, as warren ctl hash_password prints it." },
  ];
}

export const tagsField = (value = "") => ({ name: "tags", label: "Tags", value, presets: TAGS, help: "They decide what the user may do here; without one, only messaging." });

/** Returns the body of a request that adds or changes the user of that name. */
export async function userOf(name, { kind, password, repeated, hash, tags }) {
  const given = { tags: wordsOf(tags).join(",") };
  if (kind === "keep") {
    // The API replaces the whole user: without the present hash, the password would be gone.
    const { password_hash, hashing_algorithm } = await api.get(path`users/${name}`);
    return { ...given, password_hash, hashing_algorithm };
  }
  if (kind === "hash") return { ...given, password_hash: hash.trim() };
  if (kind === "none") return { ...given, password_hash: "" };
  if (password !== repeated) throw new Error("The two passwords differ.");
  return { ...given, password };
}
