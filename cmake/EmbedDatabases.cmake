# Writes OUTPUT, a C++ file that defines packjit::shipped_texts for the FILES.
include("${CMAKE_CURRENT_LIST_DIR}/EmbedText.cmake")
set(texts "")
foreach(path IN LISTS FILES)
  packjit_literals("${path}" literal)
  string(APPEND texts "\n      ${literal},")
endforeach()
file(WRITE "${OUTPUT}" "#include \"database/shipped.hpp\"

namespace packjit {

std::vector<std::string_view> shipped_texts() {
  return {${texts}};
}

}  // namespace packjit
")
