"""An object store as a secondary tier. See docs/design/010-object-store.md."""
