"""Writes a wheel, or its metadata, from a pyproject.toml and files.

A wheel is a zip file with four text files in it. Writing it here, and not with a packaging tool,
keeps everything out that differs from build to build. tests/wheels/ checks it with the tools that
will read it.
"""

import argparse
import base64
import hashlib
import pathlib
import re
import tomllib
import zipfile


def merged(common, own):
    """Merges two [project] tables: joins lists; for other values, the second table takes
    precedence."""
    both = {key: common[key] + own[key] for key in common.keys() & own.keys() if key[-1] == "s"}
    return {**common, **own, **both}


def absolute_links(readme, url, version):
    """Turns links between the repository's files into links to its web page at this version."""
    beginnings = r"(?P<image>!\[[^]]*\]\(|\bsrc=\")|\]\(|^\[[^]]+\]:\s+|\bhref=\""

    def absolute(match):
        kind = "raw" if match["image"] else "blob"
        return f"{match[1]}{url}/{kind}/v{version}/"

    return re.sub(rf"({beginnings})(?![a-z]+:|#)", absolute, readme, flags=re.MULTILINE)


def core_metadata(project, licenses, readme):
    """Returns METADATA: https://packaging.python.org/en/latest/specifications/core-metadata/"""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Author: {author['name']}" for author in project["authors"]),
        f"License-Expression: {project['license']}",
        *(f"License-File: {place}" for place in licenses),
        *(f"Project-URL: {label}, {url}" for label, url in project["urls"].items()),
        *(f"Classifier: {c}" for c in sorted(project["classifiers"])),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {r}" for r in project["dependencies"]),
    ]
    for extra, requirements in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {r}; extra == '{extra}'" for r in requirements]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def entry_points(project):
    groups = project.get("entry-points", {})
    return "\n".join(
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
        for group, entries in groups.items()
    )


def wheel_file(tag):
    python, abi, platform = tag.split("-")
    pure = str(platform == "any").lower()
    return f"Wheel-Version: 1.0\nGenerator: jaxmg\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"


def write_wheel(out, dist_info, contents):
    """Writes `contents` (path: bytes) and their RECORD, without anything specific to the
    machine."""
    record = []
    for name, data in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(data)}\n")
    record.append(f"{dist_info}/RECORD,,\n")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        # The metadata is last, as the specification recommends.
        names = sorted(contents, key=lambda name: (name.startswith(dist_info), name))
        for name in [*names, f"{dist_info}/RECORD"]:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            z.writestr(info, contents.get(name, "".join(record).encode()))


def read_project(paths, replacements):
    tables = []
    for path in paths:
        text = pathlib.Path(path).read_text()
        for item in replacements:
            text = text.replace(*item.split("=", 1))
        tables.append(tomllib.loads(text)["project"])
    return merged(*tables)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["wheel", "metadata"])
    for name in ("common", "pyproject", "readme", "url", "tag"):
        parser.add_argument("--" + name)
    parser.add_argument("--replace", action="append", default=[], help="text in a toml file=text")
    parser.add_argument("--license", action="append", default=[], help="name in the wheel=path")
    parser.add_argument("--file", action="append", default=[], help="place in the wheel=path")
    parser.add_argument("outs", nargs="+")
    args = parser.parse_args()

    project = read_project((args.common, args.pyproject), args.replace)
    licenses = dict(item.split("=", 1) for item in args.license)
    readme = absolute_links(pathlib.Path(args.readme).read_text(), args.url, project["version"])
    metadata = core_metadata(project, licenses, readme)
    if args.command == "metadata":
        for out, content in zip(args.outs, (metadata, entry_points(project)), strict=True):
            pathlib.Path(out).write_text(content)
        return

    dist_info = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    contents = {
        f"{dist_info}/METADATA": metadata.encode(),
        f"{dist_info}/WHEEL": wheel_file(args.tag).encode(),
    }
    if entries := entry_points(project):
        contents[f"{dist_info}/entry_points.txt"] = entries.encode()
    files = {f"{dist_info}/licenses/{name}": path for name, path in licenses.items()}
    files |= dict(item.split("=", 1) for item in args.file)
    contents |= {place: pathlib.Path(path).read_bytes() for place, path in files.items()}
    write_wheel(args.outs[0], dist_info, contents)


if __name__ == "__main__":
    main()
