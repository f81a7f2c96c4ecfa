// A browser does not let a page from a file read other files, from which the search would take its summaries.
if (location.protocol === "file:") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}
