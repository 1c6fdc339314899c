"""The attacks, one file each; the file's name, with `_` written `-`, is the public name."""
