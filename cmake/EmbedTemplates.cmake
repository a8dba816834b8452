# Writes OUTPUT, a C++ file that defines packjit::embedded_template for the files NAMES below ROOT.
include("${CMAKE_CURRENT_LIST_DIR}/EmbedText.cmake")
set(cases "")
foreach(name IN LISTS NAMES)
  packjit_literals("${ROOT}/${name}" literal)
  string(APPEND cases "    {\"${name}\", ${literal}},\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"templates/embedded_templates.hpp\"

namespace packjit {

std::string_view embedded_template(std::string_view name) {
  static constexpr struct {
    std::string_view name, text;
  } kTemplates[] = {
${cases}  };
  for (const auto& entry : kTemplates) {
    if (entry.name == name) return entry.text;
  }
  return {};
}

}  // namespace packjit
")
